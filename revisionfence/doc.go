// Package revisionfence is the fencing token.
package revisionfence
