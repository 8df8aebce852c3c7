//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

package main

// The directives above: Go's runtime would keep a cgroup's file open to follow its CPU limit, which costs the program
// a descriptor, maybe even its standard input's number.
