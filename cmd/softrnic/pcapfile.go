package main

import (
	"errors"
	"io/fs"
	"os"
)

// pcapFile is the file of --pcap. One that was there before loses its contents with
// the first write, not sooner: where the RNIC cannot be opened, it is as it was.
type pcapFile struct {
	*os.File
	made  bool // by us
	begun bool
}

func createPCAP(name string) (*pcapFile, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		return &pcapFile{File: f, made: true}, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if f, err = os.OpenFile(name, os.O_WRONLY, 0); err != nil {
		return nil, err
	}
	return &pcapFile{File: f}, nil
}

// Write implements io.Writer.
func (p *pcapFile) Write(b []byte) (int, error) {
	if !p.begun {
		p.begun = true
		if i, err := p.Stat(); err == nil && i.Mode().IsRegular() {
			if err := p.Truncate(0); err != nil {
				return 0, err
			}
		}
	}
	return p.File.Write(b)
}

// discard closes the file, and removes it where it was made for nothing.
func (p *pcapFile) discard() error {
	err := p.Close()
	if p.made {
		err = errors.Join(err, os.Remove(p.Name()))
	}
	return err
}
