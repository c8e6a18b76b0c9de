package etcdguard

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxFold leaves room for the transactions that are nested beside each other: etcd
// takes what they and the largest of them have from one limit.
const maxFold = 100

// folded makes reads that are more than one transaction may have into one all the same,
// of nested ones. Two for each of 128 resources would else be two transactions, and what
// they read would be of two moments.
func folded(reads []clientv3.Op) []clientv3.Op {
	if len(reads) <= maxOperations {
		return reads
	}
	var nested []clientv3.Op
	for part := range slices.Chunk(reads, maxFold) {
		nested = append(nested, clientv3.OpTxn(nil, part, nil))
	}
	return nested
}

// unfolded are the answers in the order of the reads.
func unfolded(responses []*pb.ResponseOp) []*pb.ResponseOp {
	var flat []*pb.ResponseOp
	for _, r := range responses {
		if txn := r.GetResponseTxn(); txn != nil {
			flat = append(flat, txn.Responses...)
		} else {
			flat = append(flat, r)
		}
	}
	return flat
}
