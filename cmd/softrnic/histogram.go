package main

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// histogram collects latencies of up to a minute, to three digits.
type histogram struct{ h *hdrhistogram.Histogram }

func newHistogram() histogram {
	return histogram{hdrhistogram.New(1, int64(time.Minute), 3)}
}

func (h histogram) add(d time.Duration) {
	_ = h.h.RecordValue(min(max(1, int64(d)), int64(time.Minute))) // in range, so it cannot fail
}

// us returns a percentile in microseconds.
func (h histogram) us(percent float64) float64 {
	if percent == 0 {
		return float64(h.h.Min()) / 1e3
	}
	return float64(h.h.ValueAtQuantile(percent)) / 1e3
}

func (h histogram) mean() float64  { return h.h.Mean() / 1e3 }
func (h histogram) stdev() float64 { return h.h.StdDev() / 1e3 }
