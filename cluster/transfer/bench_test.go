package transfer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkPull brings 256 MiB over one TLS connection of this process into a new file in memory. stream only sends and
// reads as much: what TLS alone costs. cpu is the processor time of both ends.
func BenchmarkPull(b *testing.B) {
	const size = 256 << 20
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		b.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	holder := &node{bytes: bytesOf(1, size)}
	pair := func(serve func(net.Conn)) net.Conn {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		go func() {
			if raw, err := l.Accept(); err == nil {
				serve(tls.Server(raw, config))
				raw.Close()
			}
		}()
		raw, err := tls.Dial("tcp", l.Addr().String(), config)
		if err != nil {
			b.Fatal(err)
		}
		return raw
	}
	run := func(name string, once func()) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			var cpu time.Duration
			for b.Loop() {
				began := processorTime()
				once()
				cpu += processorTime() - began
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
	run("stream", func() {
		conn := pair(func(c net.Conn) {
			for at := 0; at < size; at += ChunkBytes {
				_, _ = c.Write(holder.bytes[at:][:ChunkBytes])
			}
		})
		defer conn.Close()
		into := make([]byte, ChunkBytes)
		for range size / ChunkBytes {
			if _, err := io.ReadFull(conn, into); err != nil {
				b.Fatal(err)
			}
		}
	})
	pull := func() {
		fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
		if err != nil {
			b.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "bench")
		defer file.Close()
		if err := file.Truncate(size); err != nil {
			b.Fatal(err)
		}
		job := Job{ID: ID{1}, Tenant: "t", Epoch: 1, SizeBytes: size, Into: file, Streams: 1,
			Sources: []Source{{Node: ID{2}, Name: "n"}}}
		_, err = Pull(context.Background(), job, func(context.Context, Source) (net.Conn, error) {
			return pair(func(c net.Conn) { _ = Serve(context.Background(), c, ID{3}, holder) }), nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	run("pull/sums=asked", pull)
	holder.sums = sumsOf(holder.bytes)
	run("pull/sums=known", pull)
}

func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
