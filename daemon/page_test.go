package daemon

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril/client"
)

// browsed gives the page's document as Chromium has it once its scripts have run, with what the console said. Whatever
// the page asks of another place than the node fails, and is said there.
func browsed(t *testing.T, d *Daemon, secret, fragment string) (document, console string) {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium on this machine: apt-get install chromium")
	}
	address := fmt.Sprintf("http://%s/ui#token=%s%s", d.inspect.Load().Address(), secret, fragment)
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--user-data-dir=" + t.TempDir(), "--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--disable-background-networking", "--virtual-time-budget=4000", "--window-size=1280,1600"}
	if dir := os.Getenv("SCREENSHOTS"); dir != "" { // for people to look at
		file := "--screenshot=" + filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".png")
		if err := exec.CommandContext(t.Context(), browser, append(args, file, address)...).Run(); err != nil {
			t.Error(err)
		}
	}
	args = append(args, "--dump-dom", address)
	var out, said strings.Builder
	cmd := exec.CommandContext(t.Context(), browser, args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "CONSOLE") {
			console += line
		}
	}
	return out.String(), console
}

const markup = `<img src=x onerror="document.title='taken over'"><script>document.title='taken over'</script>`

// The page in a real browser: objects sorted and filtered as the fragment says, previews of tensors, the map of memory,
// names full of markup as text, and nothing that the page's own policy refuses.
func TestPageInABrowser(t *testing.T) {
	c := aConfig(t)
	c.HTTP = "127.0.0.1:0"
	d, stop := serve(t, c)
	defer stop()
	conn := dial(t, c)
	defer conn.Close()
	put := func(name, meta string, data []byte) *client.Object {
		o, err := conn.Put(data, client.CreateOptions{Name: name, Meta: []byte(meta)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Release)
		return o
	}
	wave := []byte{}
	for i := range 500 {
		wave = binary.LittleEndian.AppendUint32(wave, math.Float32bits(float32(math.Sin(float64(i)/20))))
	}
	secret := pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant})
	previews := map[string]struct {
		o    *client.Object
		want string
	}{
		"line":      {put("wave", `{"dtype":"<f4","shape":[500]}`, wave), "Line of 500 values, -"},
		"image":     {put("picture", `{"dtype":"|u1","shape":[20,30,3]}`, make([]byte, 1800)), "Image of 30 × 20 pixels"},
		"histogram": {put("cube", `{"dtype":"<f4","shape":[5,10,10]}`, wave), "Histogram of 500 values"},
		"text":      {put("text", "", []byte("<b>bold</b>")), "The first 11 bytes"},
		"wrong":     {put("wrong", `{"dtype":"<f4","shape":"`+"x"+`"}`, wave), "The first 512 bytes"},
	}
	put(markup, "", []byte("x"))
	for name, x := range previews {
		t.Run(name, func(t *testing.T) {
			document, console := browsed(t, d, secret, "&object="+x.o.ID().String())
			if !strings.Contains(document, x.want) {
				t.Errorf("no %q in %s\n%s", x.want, document, console)
			}
			if console != "" {
				t.Errorf("the console: %s", console)
			}
		})
	}
	t.Run("sorted", func(t *testing.T) {
		document, console := browsed(t, d, secret, "&sort=-size")
		before, behind := strings.Index(document, ">cube<"), strings.Index(document, ">text<")
		if before < 0 || behind < before || !strings.Contains(document, `aria-sort="descending"`) {
			t.Errorf("cube at %d, text at %d in %s", before, behind, document)
		}
		if strings.Contains(document, "taken over –") || !strings.Contains(document, "&lt;img src=x onerror=") ||
			strings.Contains(document, "<title>taken over") || console != "" {
			t.Errorf("a name is markup: %s\n%s", document, console)
		}
		if !strings.Contains(document, conn.Daemon().Tenant+": ") || !strings.Contains(document, ">Live<") ||
			strings.Contains(document, secret) {
			t.Errorf("no map, no life, or the key in the document: %s", document)
		}
	})
	t.Run("filtered", func(t *testing.T) {
		document, _ := browsed(t, d, secret, "&prefix=wa&state=sealed")
		if !strings.Contains(document, ">wave<") || strings.Contains(document, ">cube<") {
			t.Errorf("%s", document)
		}
	})
	t.Run("refused", func(t *testing.T) {
		document, _ := browsed(t, d, "wrong", "")
		if !strings.Contains(document, "this needs a token") {
			t.Errorf("%s", document)
		}
	})
}

// The page is small, and its first answers are, whatever the store holds.
func TestPageIsSmall(t *testing.T) {
	c := aConfig(t)
	c.HTTP = "127.0.0.1:0"
	d, stop := serve(t, c)
	defer stop()
	conn := dial(t, c)
	defer conn.Close()
	for i := range 2000 {
		o, err := conn.Put(nil, client.CreateOptions{Name: fmt.Sprintf("%04d-%s", i, strings.Repeat("n", 60))})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	secret, sum := pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant}), 0
	for _, path := range []string{"/ui", "/v1/status", "/v1/segments?limit=1000", "/v1/objects?limit=100", "/v1/nodes",
		"/v1/devices", "/v1/sessions"} {
		status, body, _ := asked(t, d, path, secret)
		if status != 200 {
			t.Errorf("%s: %d %.200s", path, status, body)
		}
		sum += len(body)
	}
	if sum > 300<<10 {
		t.Errorf("the page and its first answers are %d bytes, want 300 KiB at most", sum)
	}
}
