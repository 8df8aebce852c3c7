package slow

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tendril/tools/e2e/await"
)

// checkLeaks must come first: what a test cleans up runs before it.
func checkLeaks(t *testing.T) {
	here := goleak.IgnoreCurrent()
	t.Cleanup(func() { await.NoneLeft(t, here) })
}

// echo answers what it gets until the end.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func TestEveryByteArrivesLater(t *testing.T) {
	checkLeaks(t)
	p, err := Start(echo(t), 2*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	start, got := time.Now(), make([]byte, 5)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if d := time.Since(start); d < 4*time.Millisecond {
		t.Errorf("there and back in %v, not 4 ms at least", d)
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		_, _ = c.Write(want)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	if all, err := io.ReadAll(c); err != nil || !bytes.Equal(all, want) {
		t.Fatalf("%d bytes of %d, %v", len(all), len(want), err)
	}
	c.Close()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCutEndsWhatIsUp(t *testing.T) {
	checkLeaks(t)
	p, err := Start(echo(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 2 { // the second connection comes after the cut of the first
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil || p.Connections() != 1 {
			t.Fatalf("%v, %d connections", err, p.Connections())
		}
		p.Cut()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Fatalf("%d bytes, %v after the cut", n, err)
		}
		c.Close()
		for p.Connections() > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// A link with a rate takes no more, whatever the number of connections.
func TestRateIsShared(t *testing.T) {
	checkLeaks(t)
	p, err := Start(echo(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const rate, bytes = 1 << 20, 192 << 10
	p.SetRate(rate)
	start := time.Now()
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			c, err := net.Dial("tcp", p.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			go c.Write(make([]byte, bytes))
			if _, err := io.ReadFull(c, make([]byte, bytes)); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if d := time.Since(start); d < 2*bytes*time.Second/rate*9/10 {
		t.Errorf("%d bytes each way in %v", 2*bytes, d)
	}
}
