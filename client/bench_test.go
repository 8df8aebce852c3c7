package client_test

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/store/segment"
)

// roundTripNS is the C reference (tools/bench/rtt.c), or 0 where there is no C compiler.
func roundTripNS(b *testing.B) float64 {
	binary := filepath.Join(b.TempDir(), "rtt")
	if out, err := exec.Command("cc", "-O2", "-o", binary, "../tools/bench/c/rtt.c").CombinedOutput(); err != nil {
		b.Logf("no reference: %v %s", err, out)
		return 0
	}
	var took []float64
	for range 5 {
		reference := exec.Command(binary)
		reference.Stdin = strings.NewReader("rtt\n")
		out, err := reference.Output()
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(out)) // "ready PORT", then the trip's ns
		ns, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, ns)
	}
	sort.Float64s(took)
	return took[len(took)/2]
}

func dialBench(b *testing.B) *client.Conn {
	b.Helper()
	socket, _ := startDaemon(b)
	c, err := client.Dial(context.Background(), client.Options{Socket: socket})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// measure reports the median, and its ratio to the reference where there is one.
func measure(b *testing.B, reference float64, op func()) {
	for range 200 {
		op()
	}
	b.ReportAllocs()
	var took []float64
	for b.Loop() {
		began := time.Now()
		op()
		took = append(took, float64(time.Since(began)))
	}
	sort.Float64s(took)
	median := took[len(took)/2]
	b.ReportMetric(median, "median-ns")
	if reference > 0 {
		b.ReportMetric(median/reference, "x-rtt")
	}
}

func BenchmarkGetRelease(b *testing.B) {
	reference := roundTripNS(b)
	b.Run("size=1MiB/path=unix", func(b *testing.B) {
		c := dialBench(b)
		o := must(c.Put(context.Background(), make([]byte, 1<<20), client.CreateOptions{}))(b)
		defer o.Release()
		measure(b, reference, func() {
			got, err := c.Get(context.Background(), o.ID(), 0)
			if err != nil {
				b.Fatal(err)
			}
			_ = got.Bytes()[0]
			got.Release()
		})
	})
}

func BenchmarkCreateSeal(b *testing.B) {
	reference := roundTripNS(b)
	b.Run("size=4KiB/path=unix", func(b *testing.B) {
		c := dialBench(b)
		data := make([]byte, 4096)
		measure(b, reference, func() {
			o, err := c.Put(context.Background(), data, client.CreateOptions{})
			if err != nil {
				b.Fatal(err)
			}
			o.Release()
		})
	})
}

// BenchmarkFill compares create + fill + seal of 1 GiB in warm memory with memcpy into a touched mapping.
func BenchmarkFill(b *testing.B) {
	const size = 1 << 30
	b.Run("size=1GiB/path=unix", func(b *testing.B) {
		c := dialBench(b)
		source := bytes.Repeat([]byte{7}, size)
		reference := touched(b, size)
		var ours, memcpy time.Duration
		round := func() {
			began := time.Now()
			copy(reference, source)
			memcpy += time.Since(began)
			began = time.Now()
			o, err := c.Put(context.Background(), source, client.CreateOptions{})
			if err != nil {
				b.Fatal(err)
			}
			ours += time.Since(began)
			o.Release()
		}
		round() // first touch
		ours, memcpy = 0, 0
		for b.Loop() {
			round()
		}
		b.ReportMetric(float64(memcpy)/float64(ours), "x-memcpy-rate")
	})
}

// touched is shared memory that was written before.
func touched(b *testing.B, size uint64) []byte {
	m, err := segment.Create(segment.Linux{}, size)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	file := must(dupFile(m))(b)
	defer file.Close()
	mapping := must(segment.Map(file, size, true))(b)
	b.Cleanup(func() { mapping.Unmap() })
	clear(mapping.Bytes())
	return mapping.Bytes()
}

// BenchmarkStream is one writer and one reader, in processes of the benchmark and the daemon: frames of 1 MiB against
// memcpy over as much memory, and the hand-over of a small frame (a ping and a pong are two) against a round trip in C.
func BenchmarkStream(b *testing.B) {
	b.Run("frames=1MiB", func(b *testing.B) {
		socket, _ := startDaemon(b)
		in, out := must(client.Dial(context.Background(),
			client.Options{Socket: socket}))(b),
			must(client.Dial(context.Background(), client.Options{Socket: socket}))(b)
		defer in.Close()
		defer out.Close()
		w := must(in.OpenWriter(context.Background(), "s", client.StreamOptions{Ahead: 8}))(b)
		r := must(out.OpenReader(context.Background(), "s", client.StreamOptions{Ahead: 8}))(b)
		src, dst := make([]byte, 1<<20), make([]byte, 24<<20)
		ctx, n := context.Background(), 0
		pump := func(n int) time.Duration {
			began := time.Now()
			go func() {
				for range n {
					if err := w.Write(ctx, src, nil, -1); err != nil {
						b.Error(err)
					}
				}
			}()
			for range n {
				must(r.Pop(ctx, -1))(b).Release()
			}
			return time.Since(began)
		}
		pump(200)
		var streamed, copied time.Duration
		for b.Loop() { // in turn, so that both meet the same neighbours
			streamed += pump(100)
			began := time.Now()
			for i := range 100 {
				segment.Copy(dst[i%24<<20:][:1<<20], src)
			}
			copied += time.Since(began)
			n += 100
		}
		b.ReportMetric(float64(n)/1024/streamed.Seconds(), "GiB/s")
		b.ReportMetric(copied.Seconds()/streamed.Seconds(), "of-memcpy")
	})
	b.Run("hand-over", func(b *testing.B) {
		reference := roundTripNS(b)
		socket, _ := startDaemon(b)
		in, out := must(client.Dial(context.Background(),
			client.Options{Socket: socket}))(b),
			must(client.Dial(context.Background(), client.Options{Socket: socket}))(b)
		defer in.Close()
		defer out.Close()
		there, back := must(in.OpenWriter(context.Background(), "there", client.StreamOptions{}))(b),
			must(out.OpenWriter(context.Background(), "back", client.StreamOptions{}))(b)
		atB, atA := must(out.OpenReader(context.Background(), "there", client.StreamOptions{}))(b),
			must(in.OpenReader(context.Background(), "back", client.StreamOptions{}))(b)
		ctx := context.Background()
		go func() {
			for {
				f, err := atB.Pop(ctx, -1)
				if err != nil {
					return
				}
				f.Release()
				if back.Write(ctx, []byte("pong"), nil, -1) != nil {
					return
				}
			}
		}()
		measure(b, 2*reference, func() {
			if err := there.Write(ctx, []byte("ping"), nil, -1); err != nil {
				b.Fatal(err)
			}
			must(atA.Pop(ctx, -1))(b).Release()
		})
		there.End(ctx)
	})
}
