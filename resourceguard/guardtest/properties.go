package guardtest

// Properties are all that is checked, in the order of [Run].
func Properties() []Property {
	var all []Property
	for _, group := range [][]Property{
		tokenProperties(), markProperties(), policyProperties(), operationProperties(),
		repetitionProperties(), barrierProperties(), floorProperties(), stepProperties(), callProperties(),
	} {
		all = append(all, group...)
	}
	return all
}
