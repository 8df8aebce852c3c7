package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScrub: a file that changed on disk is found and named, and the exit code says so.
func TestScrub(t *testing.T) {
	n := startNode(t, "--scrub-interval", "1h")
	n.want(0, []string{"every 1h0m0s"}, "status")
	n.want(0, nil, "put", n.file("x", []byte(strings.Repeat("x", 5000))), "--persist")
	n.want(0, []string{`"checksum": true`}, "put", n.file("y", []byte("hello")), "--checksum", "--json")
	n.want(0, []string{"checksum", "known"}, "stat", "y")
	n.want(0, nil, "put", n.file("z", []byte("hello")))
	n.want(0, []string{"3 objects", "1 got checksums", "0 damaged"}, "scrub")
	n.want(0, []string{`"objects": 3`, `"new": 0`, `"damaged": []`}, "scrub", "--json")
	n.want(0, []string{"scrub ", "3 objects", "0 damaged"}, "status")
	n.process.Process.Kill() // so that the disk has the only copy
	<-n.ended
	files, err := filepath.Glob(filepath.Join(n.dir, "state", "objects", "*.bytes"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files of objects: %v, %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte(strings.Repeat("x", 4999)+"y"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.want(1, []string{"1 damaged", "x", "disk", "checksum"}, "scrub")
	n.want(1, []string{`"where": "disk"`, `"objects": 1`}, "scrub", "--json")
	n.want(1, []string{"checksum", "tendril rm", "tendril scrub"}, "get", "x", "-o", "-")
}
