package etcdguard

import (
	"errors"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// result is what is known of an operation that was applied before. Its Value is the
// revision of the answer, in decimal.
func (s *saved) result() resourceguard.Result {
	return resourceguard.Result{Replayed: true, Value: revisionValue(s.revision), Mark: s.Token}
}

func revisionValue(revision int64) []byte { return strconv.AppendInt(nil, revision, 10) }

// sayApplied completes a refusal as stale, if the operation is the same.
func sayApplied(c call, s *saved, err error) error {
	if stale, ok := errors.AsType[*resourceguard.StaleError](err); ok && s != nil && c.checkDigest(s) == nil {
		result := s.result()
		stale.Applied = &result
	}
	return err
}

// replayed answers for an operation that was applied before. The answer has the
// revision, the branch and the shape of the first one, so that a program which
// takes it apart does not stumble; what the operations themselves answered is not
// kept.
func (c *call) replayed(s *saved) answer {
	header := &pb.ResponseHeader{Revision: s.revision}
	resp := &clientv3.TxnResponse{Header: header, Succeeded: true}
	if len(c.ops) == 1 && c.ops[0].IsTxn() {
		_, then, otherwise := c.ops[0].Txn()
		if !s.Succeeded {
			then = otherwise
		}
		inner := &pb.TxnResponse{Header: header, Succeeded: s.Succeeded, Responses: blanks(then)}
		resp.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: inner}}}
	} else {
		resp.Responses = blanks(c.ops)
	}
	return answer{resp: resp, saved: s, revision: s.revision}
}

func blanks(ops []clientv3.Op) []*pb.ResponseOp {
	var result []*pb.ResponseOp
	for _, op := range ops {
		r := new(pb.ResponseOp)
		switch {
		case op.IsPut():
			r.Response = &pb.ResponseOp_ResponsePut{ResponsePut: new(pb.PutResponse)}
		case op.IsDelete():
			r.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: new(pb.DeleteRangeResponse)}
		case op.IsGet():
			r.Response = &pb.ResponseOp_ResponseRange{ResponseRange: new(pb.RangeResponse)}
		default: // the branch that it took is not known
			r.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: new(pb.TxnResponse)}
		}
		result = append(result, r)
	}
	return result
}
