package loopback

import "testing"

func TestPair(t *testing.T) {
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if _, err := a.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1)
	if _, err := b.Read(got); err != nil || got[0] != 'x' {
		t.Errorf("%q came: %v", got, err)
	}
}
