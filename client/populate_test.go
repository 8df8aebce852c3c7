package client_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"tendril/client"
	"tendril/store"
)

// residentBytes reads this process's shared resident memory (proc(5), statm).
func residentBytes(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[2])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

func TestPopulate(t *testing.T) {
	n := startNode(t, store.Options{})
	const size = 32 << 20
	w := must(n.dial(t).Put(context.Background(), make([]byte, size), client.CreateOptions{}))(t)
	defer w.Release()
	o := must(n.dial(t).Get(context.Background(), w.ID(), 0))(t)
	before := residentBytes(t)
	o.Populate()
	if grown := residentBytes(t) - before; grown < size*9/10 {
		t.Errorf("%d bytes more are mapped, of %d", grown, size)
	}
	o.Release()
	o.Populate()
}
