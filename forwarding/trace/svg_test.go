package trace

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// drawn draws a picture, checks that it is XML, and returns it with the texts in it.
func drawn(t *testing.T, line *Timeline) (svg string, texts map[string]int) {
	t.Helper()
	var out bytes.Buffer
	if err := line.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	svg, texts = out.String(), map[string]int{}
	for d := xml.NewDecoder(&out); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return svg, texts
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		if s, ok := token.(xml.CharData); ok {
			texts[strings.TrimSpace(string(s))]++
		}
	}
}

func TestAPictureOfAStory(t *testing.T) {
	s, f := newStory(t, 0, 0)
	s.compare(500, 200, 200)
	s.launch(1, "edges<&>", 1_000, 5_000, 60_000)
	s.launch(2, "blur", 20_000, 60_000, 90_000)
	s.call("clFinish", 30_000, 95_000, 77, 0)
	s.Append(&Record{Kind: KindTrip, Time: 31_000, X: 94_000, Thread: 1, Aux: s.worker, Code: uint16(CauseFinish)})
	svg, texts := drawn(t, s.line(f, 0))
	for _, want := range []string{"thread main", "worker 3, queue 9: device", "worker 3, queue 9: driver", "edges<&>",
		"blur", "clFinish", "waits: clFinish", "10µs"} {
		if texts[want] == 0 {
			t.Errorf("%q is not in it: %v", want, texts)
		}
	}
	if n := strings.Count(svg, colourDevice); n != 3 { // two kernels and the legend
		t.Errorf("%d boxes of the device's", n)
	}
}

func TestAPictureOfMuchIsSmall(t *testing.T) {
	s, f := newStory(t, 0, 0)
	for i := range int64(10_000) {
		s.call("clRetainKernel", 1_000+i*100, 1_050+i*100, 0, 0)
	}
	svg, _ := drawn(t, s.line(f, 0))
	if n := strings.Count(svg, colourCall); n < 100 || n > pictureWidth/pictureStep+1 {
		t.Errorf("%d boxes, %d bytes", n, len(svg))
	}
}

func TestAPictureOfNothing(t *testing.T) {
	if svg, _ := drawn(t, &Timeline{}); !strings.HasSuffix(svg, "</svg>\n") {
		t.Errorf("%q", svg)
	}
}

func TestRoundSteps(t *testing.T) {
	for span, want := range map[int64]int64{0: 1, 9: 1, 10: 2, 20: 5, 49: 5, 50: 10, 100: 20, 7_000: 1_000,
		1 << 62: 500_000_000_000_000_000} {
		if got := roundStep(span); got != want {
			t.Errorf("%d: %d, want %d", span, got, want)
		}
	}
}
