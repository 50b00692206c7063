//go:build !linux

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
)

func demoTAP(ctx context.Context, o demoOptions, w, errw io.Writer) error {
	return fmt.Errorf("%w: TAPs need Linux, this is %s", errNoLab, runtime.GOOS)
}

func demoOffTAP(ctx context.Context, o demoOptions, w, errw io.Writer) error {
	return demoMemory(ctx, o, w, errw)
}
