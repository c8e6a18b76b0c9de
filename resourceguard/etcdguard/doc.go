// Package etcdguard fences operations on an etcd.
package etcdguard
