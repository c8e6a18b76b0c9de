package coordinator_test

const workerVariable = "COORDINATOR_TEST_WORKER"
func worker(string) {}
