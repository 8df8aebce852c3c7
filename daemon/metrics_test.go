package daemon

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store/object"
)

// scraped gives what a daemon's /metrics says, as text and as Prometheus reads it.
func scraped(t *testing.T, d *Daemon) (string, map[string]*dto.MetricFamily) {
	t.Helper()
	status, body, r := asked(t, d, "/metrics", "")
	if status != 200 || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%d %s %s", status, r.Header.Get("Content-Type"), body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	return body, families
}

// valueOf gives the sample of a family whose label has a value; "" is the one without labels.
func valueOf(f *dto.MetricFamily, label string) float64 {
	for _, m := range f.GetMetric() {
		has := label == "" && len(m.GetLabel()) == 0
		for _, l := range m.GetLabel() {
			has = has || l.GetValue() == label
		}
		if has && m.Histogram != nil {
			return float64(m.Histogram.GetSampleCount())
		}
		if has {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return -1
}

func watched(t *testing.T) *Daemon {
	t.Helper()
	c := aConfig(t)
	c.HTTP, c.HTTPMetrics = "127.0.0.1:0", metricsOpen
	d, stop := serve(t, c)
	t.Cleanup(stop)
	return d
}

// The metrics keep Prometheus' own rules (those of promtool check metrics), and count what was done.
func TestMetricsCount(t *testing.T) {
	d := watched(t)
	conn := dial(t, d.cfg)
	defer conn.Close()
	_, before := scraped(t, d)
	const puts = 7
	for range puts {
		o, err := conn.Put(context.Background(), []byte("seven"), client.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	if _, err := conn.Get(t.Context(), object.NewID(), 0); err == nil {
		t.Fatal("an object that nobody made is there")
	}
	if _, err := admin.Of(conn).Status(context.Background()); err != nil { // the releases are done
		t.Fatal(err)
	}
	body, after := scraped(t, d)
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, x := range []struct {
		name, label string
		more        float64
	}{
		{"tendril_request_duration_seconds", "Seal", puts},
		{"tendril_request_failures_total", "Get", 1},
		{"tendril_http_requests_total", "200", 1},
	} {
		if got := valueOf(after[x.name], x.label) - max(valueOf(before[x.name], x.label), 0); got != x.more {
			t.Errorf("%s{%s} rose by %v, want %v", x.name, x.label, got, x.more)
		}
	}
	for _, name := range []string{"tendril_store_created_objects_total", "tendril_store_removed_objects_total"} {
		got := valueOf(after[name], "") - max(valueOf(before[name], ""), 0)
		if got < puts || got > 2*puts { // a client makes its next object ahead, and gives up one that waits for long
			t.Errorf("%s rose by %v, want %d and some more", name, got, puts)
		}
	}
	if took := after["tendril_request_duration_seconds"].GetMetric()[0].GetHistogram(); took.GetSampleSum() <= 0 {
		t.Errorf("requests took no time: %v", took)
	}
}

var metricNames = regexp.MustCompile(`\b(?:tendril|process|go)_[a-z0-9_]+`)

// Each metric that the dashboard and the alert rules name is one that a daemon has.
func TestWhatIsWatchedIsThere(t *testing.T) {
	body, _ := scraped(t, watched(t))
	is := map[string]bool{}
	for _, line := range strings.Split(body, "\n") {
		if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(kind, " ")
			is[name] = kind != "histogram"
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				is[name+end] = kind == "histogram"
			}
		}
	}
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		raw, err := os.ReadFile("../docs/monitoring/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".json") && !json.Valid(raw) {
			t.Errorf("%s is no JSON", file)
		}
		names := metricNames.FindAllString(string(raw), -1)
		if len(names) < 8 {
			t.Errorf("%s names %d metrics: %q", file, len(names), names)
		}
		for _, name := range names {
			if !is[name] {
				t.Errorf("%s names %s, which no daemon has", file, name)
			}
		}
	}
}
