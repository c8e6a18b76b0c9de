// Package resourceguard is the rule by which a resource admits fencing tokens.
package resourceguard
