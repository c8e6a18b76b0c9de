package revisionfence

import "context"

// Source is whatever carries a token: a grant of the coordinator, or a [Token]
// itself.
type Source interface {
	// Token returns the token, the same one for as long as the source lives.
	Token() Token
}

type contextKey struct{}

// NewContext returns a context that carries the source's token to whoever
// writes under it. It carries the token, not the grant: it does not end with
// the grant. A nil source is the zero Token, which hides an outer one.
func NewContext(ctx context.Context, s Source) context.Context {
	var t Token
	if s != nil {
		t = s.Token()
	}
	return context.WithValue(ctx, contextKey{}, t)
}

// FromContext returns the token that [NewContext] put into the context. A zero
// Token counts as none.
func FromContext(ctx context.Context) (Token, bool) {
	t, ok := ctx.Value(contextKey{}).(Token)
	return t, ok && !t.IsZero()
}

// Mark is the last accepted token of a resource: the largest that a guard has
// let in.
type Mark struct {
	// Resource is the name that the guard knows the resource by.
	Resource string `json:"resource"`
	// Token is the mark itself.
	Token Token `json:"token"`
}
