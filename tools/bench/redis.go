package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tendril/client"
)

// redis is a Redis of this run (a unix socket, nothing on disk), and the barest client that it can have: it writes the
// command and reads the reply, with nothing in between.
type redis struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
}

// startRedis starts it. It ends with the rig.
func startRedis(r *rig) (*redis, error) {
	path := filepath.Join(r.dir, "redis.sock")
	server := exec.Command("redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", r.dir)
	if err := server.Start(); err != nil {
		return nil, &missingError{"no Redis (Debian's redis-server): " + err.Error()}
	}
	r.atEnd(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	var err error
	for range 500 {
		var conn net.Conn
		if conn, err = net.Dial("unix", path); err == nil {
			r.atEnd(func() { conn.Close() })
			return &redis{conn: conn, in: bufio.NewReader(conn)}, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("redis-server does not answer: %w", err)
}

// do sends a command and returns the first line of the reply.
func (k *redis) do(words ...[]byte) (string, error) {
	k.out = append(k.out[:0], fmt.Sprintf("*%d\r\n", len(words))...)
	for _, word := range words {
		k.out = strconv.AppendInt(append(k.out, '$'), int64(len(word)), 10)
		k.out = append(append(append(k.out, "\r\n"...), word...), "\r\n"...)
	}
	if _, err := k.conn.Write(k.out); err != nil {
		return "", err
	}
	line, err := k.in.ReadString('\n')
	return strings.TrimSuffix(line, "\r\n"), err
}

func (k *redis) set(key string, data []byte) error {
	reply, err := k.do([]byte("SET"), []byte(key), data)
	if err == nil && reply != "+OK" {
		err = errors.New("SET: " + reply)
	}
	return err
}

func (k *redis) get(key string, into []byte) error {
	reply, err := k.do([]byte("GET"), []byte(key))
	if err != nil {
		return err
	}
	if reply != "$"+strconv.Itoa(len(into)) {
		return errors.New("GET: " + reply)
	}
	if _, err = io.ReadFull(k.in, into); err == nil {
		_, err = k.in.Discard(len("\r\n"))
	}
	return err
}

// smallCalls is the median time in ns of one call.
type smallCalls func(*redis, *client.Conn, []byte) (float64, error)

// redisBenchmarks compares the Go client's small objects with Redis.
func redisBenchmarks(r *rig) (all []benchmark) {
	row := func(name string, size int, against string, theirs, ours smallCalls) {
		all = append(all, benchmark{name: fmt.Sprintf("store/%s/size=%d/client=go", name, size), unit: "ns",
			against: against, atMost: 1, best: true, measure: func() (v, ref float64, err error) {
				return besideRedis(r, size, theirs, ours)
			}})
	}
	for _, size := range []int{100, small} {
		row("put", size, "SET of Redis, by a bare client in Go",
			func(k *redis, _ *client.Conn, data []byte) (float64, error) {
				return perCall(calls, func() error { return k.set("bench", data) })
			}, putSmall)
		row("get", size, "GET of Redis, by a bare client in Go",
			func(k *redis, _ *client.Conn, data []byte) (float64, error) {
				into := make([]byte, len(data))
				return perCall(calls, func() error { return k.get("bench", into) })
			}, getSmall)
	}
	return all
}

// besideRedis measures both with the same bytes, which each has under the name bench already.
func besideRedis(r *rig, size int, theirs, ours smallCalls) (v, ref float64, err error) {
	if r.redis == nil {
		if r.redis, err = startRedis(r); err != nil {
			return 0, 0, err
		}
	}
	conn, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	data := bytes.Repeat([]byte("x"), size)
	if err := r.redis.set("bench", data); err != nil {
		return 0, 0, err
	}
	if ref, err = theirs(r.redis, conn, data); err != nil {
		return 0, 0, err
	}
	v, err = ours(r.redis, conn, data)
	return v, ref, err
}

func putSmall(_ *redis, conn *client.Conn, data []byte) (float64, error) {
	return perCall(calls, func() error {
		o, err := conn.Put(context.Background(), data, client.CreateOptions{})
		if err == nil {
			o.Release()
		}
		return err
	})
}

func getSmall(_ *redis, conn *client.Conn, data []byte) (float64, error) {
	o, err := conn.Put(context.Background(), data, client.CreateOptions{Name: "bench-redis"})
	if err != nil {
		return 0, err
	}
	defer o.Release()
	into := make([]byte, len(data))
	return perCall(calls, func() error {
		got, err := conn.GetByName(context.Background(), "bench-redis", 0)
		if err != nil {
			return err
		}
		defer got.Release()
		if copy(into, got.Bytes()) != len(data) {
			return errors.New("other bytes came")
		}
		return nil
	})
}
