package memguard

import (
	"context"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// CorruptMark makes a mark unreadable. It is for tests alone: memory does not
// decay, but the kit has to see what would happen if it did.
func (s *Store) CorruptMark(ctx context.Context, resource string) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	s.at(resource).stored = resourceguard.ParseMark("12345@")
	return nil
}

// Operations returns how many results are kept for a resource.
func (s *Store) Operations(ctx context.Context, resource string) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.unlock()
	return len(s.at(resource).operations), nil
}
