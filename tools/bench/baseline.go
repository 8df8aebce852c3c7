package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"tendril/client"
)

// The bulk references move so much, a round.
const (
	baselineBytes = 512 << 20
	baselinePiece = 128 << 20
)

// iperf3 is the rate of one TCP stream over loopback, as its receiver saw it, in bytes per second.
func iperf3(ctx context.Context) (float64, error) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return 0, &missingError{"iperf3 is not installed (Debian package iperf3)"}
	}
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	server := exec.CommandContext(ctx, "iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port)
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() { cancel(); _ = server.Wait() }() // its figure is the client's to print
	for {
		out, err := exec.CommandContext(ctx, "iperf3", "-c", "127.0.0.1", "-p", port, "-n", strconv.Itoa(baselineBytes),
			"-J").Output()
		var answer struct {
			End struct {
				Received struct {
					BitsPerSecond float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if jsonErr := json.Unmarshal(out, &answer); err == nil && jsonErr == nil &&
			answer.End.Received.BitsPerSecond > 0 {
			return answer.End.Received.BitsPerSecond / 8, nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("iperf3: %w: %s", errors.Join(err, ctx.Err()), out)
		}
		time.Sleep(10 * time.Millisecond) // its server is not up yet
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// goTLS is the rate of one TLS 1.3 stream over loopback between two goroutines, in pieces as large as the measured
// transfers, in bytes per second.
func goTLS() (_ float64, err error) {
	config, err := selfSigned()
	if err != nil {
		return 0, err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() { sent <- sendTLS(l) }()
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.Handshake(); err != nil {
		return 0, err
	}
	start, into := time.Now(), make([]byte, 256<<10)
	for got := 0; got < baselineBytes; {
		n, err := c.Read(into)
		if got += n; err != nil && got < baselineBytes {
			return 0, err
		}
	}
	rate := baselineBytes / time.Since(start).Seconds()
	return rate, <-sent
}

func sendTLS(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	piece := make([]byte, baselinePiece)
	for range baselineBytes / baselinePiece {
		if _, err := c.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// selfSigned is a certificate as those of sessions are: an ECDSA key that nobody vouches for.
func selfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	from := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, from, from, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		MinVersion: tls.VersionTLS13}, nil
}

// publishSyncs is how often one publish on a cluster of one makes a file durable: raft-wal's append, once (strace -e
// fsync,fdatasync).
const publishSyncs = 1

const publishes = 60

// publish replaces a published object by the next, and appends as much to a file beside the log.
func publish(r *rig) (value, syncs float64, err error) {
	one, err := syncedAppend(filepath.Join(r.dir, "state"))
	if err != nil {
		return 0, 0, err
	}
	conn, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	var objects [2]*client.Object
	for i := range objects {
		if objects[i], err = conn.Put(context.Background(), make([]byte, small), client.CreateOptions{}); err != nil {
			return 0, 0, err
		}
		defer objects[i].Release()
	}
	i := 0
	value, err = perCall(publishes, func() error {
		i++
		_, err := conn.Publish(context.Background(), objects[i%2].ID(), "bench", true)
		return err
	})
	return value, publishSyncs * one, err
}

// syncedAppend is the median time of an append of 512 bytes and its fsync, to a file whose room was taken before, as
// a log's segment is.
func syncedAppend(dir string) (_ float64, err error) {
	f, err := os.CreateTemp(dir, "bench-append-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := io.CopyN(f, zeros{}, 1<<20); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	at := int64(0)
	return perCall(publishes, func() error {
		if _, err := f.WriteAt(make([]byte, 512), at); err != nil {
			return err
		}
		at += 512
		return f.Sync()
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
