// Package coordinator decides, through etcd, who may hold a lock now.
package coordinator
