package dissect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/capture"
	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/mpa"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

const pcaps = "../../testdata/pcaps/"

// record is a Record with its octets kept, and the notes that came before it.
type record struct {
	Record
	wire []byte
}

// decode decodes a capture, and returns what was noted.
func decode(t testing.TB, file []byte) (rs []record, notes []string) {
	t.Helper()
	r, err := capture.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	d := Decoder{
		Emit: func(r *Record) error {
			rs = append(rs, record{*r, slices.Clone(r.Wire)})
			return nil
		},
		Note: func(frame int, s string) { notes = append(notes, fmt.Sprintf("%d: %s", frame, s)) },
	}
	if _, err := d.Decode(r); err != nil {
		t.Fatal(err)
	}
	return rs, notes
}

func files(t testing.TB, ext string) []string {
	t.Helper()
	names, err := filepath.Glob(pcaps + "*" + ext)
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s in %s: %v", ext, pcaps, err)
	}
	return names
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestListings holds Decode at the listings that came with captures, line by line.
func TestListings(t *testing.T) {
	for _, name := range files(t, ".txt") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			rs, notes := decode(t, read(t, strings.TrimSuffix(name, ".txt")+".pcap"))
			if len(notes) > 0 {
				t.Error("notes:", notes)
			}
			var got []string
			for _, r := range rs {
				got = append(got, listing(r))
			}
			want := strings.Split(strings.TrimSpace(string(read(t, name))), "\n")
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// listing writes r as the listings do.
func listing(r record) string {
	if s := r.Startup; s != nil {
		key := map[string]string{Request: "MPA ID Req Frame", Reply: "MPA ID Rep Frame"}[r.Kind]
		line := fmt.Sprintf("%s>%s %s flags=%#02x(M=%d C=%d R=%d S=%d) rev=%d pdlen=%d", r.Src, r.Dst, key, r.wire[16],
			bit(s.WantMarkers), bit(s.WantCRC), bit(s.Reject), bit(s.Enhanced), s.Revision, s.PDLength)
		if s.IRD != nil {
			line += fmt.Sprintf(" ird=%d ord=%d", *s.IRD, *s.ORD)
		}
		return line
	}
	name := map[string]string{"send": "SEND", "send-inv": "SEND_INV", "send-se": "SEND_SE", "send-se-inv": "SEND_SE_INV",
		"write": "WRITE", "read-request": "READ_REQ", "read-response": "READ_RESP", "terminate": "TERMINATE"}[r.Opcode]
	line := fmt.Sprintf("%s>%s ulpdu=%d dv=%d rv=%d L=%d %s", r.Src, r.Dst, r.ULPDU, r.wire[2]&3, r.wire[3]>>6, bit(r.Last), name)
	if r.Tagged != nil {
		line += fmt.Sprintf(" T stag=%08x to=%x len=%d", r.STag, r.TO, r.Len)
	} else {
		inv := uint32(0)
		if r.Inv != nil {
			inv = *r.Inv
		}
		line += fmt.Sprintf(" U qn=%d msn=%d mo=%d len=%d inv=%08x", r.QN, r.MSN, r.MO, r.Len, inv)
		if q := r.ReadRequest; q != nil {
			line += fmt.Sprintf(" sink=%08x/%x len=%d src=%08x/%x", q.SinkSTag, q.SinkTO, q.Size, q.SrcSTag, q.SrcTO)
		}
	}
	stored := binary.LittleEndian.Uint32(r.wire[len(r.wire)-4:])
	if crc := map[bool]string{true: CRCOff, false: CRCOk}[stored == 0]; crc != r.CRC {
		return line + " crc is " + r.CRC + ", not " + crc
	}
	return line + fmt.Sprintf(" crc %x", stored)
}

// TestTshark holds Decode at what tshark found.
func TestTshark(t *testing.T) {
	for _, name := range files(t, ".tshark") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			rs, notes := decode(t, read(t, strings.TrimSuffix(name, ".tshark")+".pcap"))
			if len(notes) > 0 {
				t.Error("notes:", notes)
			}
			lines := strings.Split(strings.TrimRight(string(read(t, name)), "\n"), "\n")
			columns := strings.Split(lines[0], "\t")
			var want, got []map[string]string
			for i, line := range lines[1:] {
				row := map[string]string{}
				for j, v := range strings.Split(line, "\t") {
					if v != "" {
						row[columns[j]] = number(v)
					}
				}
				delete(row, "iwarp_mpa.crc_check") // its presence is in the next
				delete(row, "iwarp_mpa.crc")
				if strings.Contains(lines[0], "crc_check") && row["iwarp_mpa.ulpdulength"] != "" {
					row["crc"] = CRCOff
					if strings.Split(line, "\t")[slices.Index(columns, "iwarp_mpa.crc_check")] != "" {
						row["crc"] = CRCOk
					}
				}
				want = append(want, row)
				if i < len(rs) {
					got = append(got, fields(rs[i]))
				}
			}
			if len(rs) != len(want) {
				t.Errorf("%d records, tshark has %d", len(rs), len(want))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// number turns tshark's hexadecimal numbers into decimal ones.
func number(s string) string {
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return s
}

// fields are those of tshark.
func fields(r record) map[string]string {
	m := map[string]string{"frame.number": fmt.Sprint(r.Frame)}
	m["ip.src"], m["tcp.srcport"], _ = strings.Cut(r.Src, ":")
	m["ip.dst"], m["tcp.dstport"], _ = strings.Cut(r.Dst, ":")
	set := func(k string, v any) { m[k] = fmt.Sprint(v) }
	if s := r.Startup; s != nil {
		set("iwarp_mpa.rev", s.Revision)
		set("iwarp_mpa.pdlength", s.PDLength)
		set("iwarp_mpa.marker_flag", bit(s.WantMarkers))
		set("iwarp_mpa.crc_flag", bit(s.WantCRC))
		set("iwarp_mpa.rej_flag", bit(s.Reject))
		return m
	}
	set("iwarp_mpa.ulpdulength", r.ULPDU)
	set("crc", r.CRC)
	set("iwarp_rdma.opcode", r.wire[3]&0xf)
	set("iwarp_ddp.last_flag", bit(r.Last))
	if r.Tagged != nil {
		set("iwarp_ddp.stag", r.STag)
		set("iwarp_ddp.tagged_offset", r.TO)
	}
	if u := r.Untagged; u != nil {
		set("iwarp_ddp.qn", u.QN)
		set("iwarp_ddp.msn", u.MSN)
		set("iwarp_ddp.mo", u.MO)
		if u.Inv != nil {
			set("iwarp_rdma.inval_stag", *u.Inv)
		}
	}
	if q := r.ReadRequest; q != nil {
		set("iwarp_rdma.sinkstag", q.SinkSTag)
		set("iwarp_rdma.sinkto", q.SinkTO)
		set("iwarp_rdma.rdmardsz", q.Size)
		set("iwarp_rdma.srcstag", q.SrcSTag)
		set("iwarp_rdma.srcto", q.SrcTO)
	}
	return m
}

// TestReencode takes every frame of every capture apart with the codecs of iwarp,
// puts it together again, and wants the same octets.
func TestReencode(t *testing.T) {
	count := map[string]int{}
	for _, name := range files(t, ".pcap") {
		rs, _ := decode(t, read(t, name))
		for _, r := range rs {
			again := reencode(t, r)
			if !bytes.Equal(again, r.wire) {
				t.Errorf("%s, packet %d: %v\n  is   %x\n  made %x", filepath.Base(name), r.Frame, r.String(), r.wire, again)
			}
			count[r.Kind]++
			if r.Segment != nil {
				count[r.Opcode]++
			}
		}
	}
	for _, kind := range []string{Request, Reply, "send", "send-inv", "write", "read-request", "read-response"} {
		if count[kind] == 0 {
			t.Errorf("no capture has a %s", kind)
		}
	}
	t.Log(count)
}

func reencode(t *testing.T, r record) []byte {
	if r.Startup != nil {
		f, rest, err := mpa.ParseFrame(r.wire)
		if err != nil || len(rest) > 0 {
			t.Fatalf("%x: %d octets left, %v", r.wire, len(rest), err)
		}
		b, err := f.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		const reserved = 0x0f // siw's GSO bit is one of them: not checked, not sent (RFC 5044 section 7.1.1)
		b[16] |= r.wire[16] & reserved
		return b
	}
	u := r.wire[2 : 2+r.ULPDU]
	var b []byte
	var payload []byte
	if ddp.IsTagged(u[0]) {
		h, err := ddp.ParseTagged(u)
		if err != nil {
			t.Fatal(err)
		}
		b = make([]byte, ddp.TaggedLen)
		h.Put(b)
		payload = u[ddp.TaggedLen:]
	} else {
		h, err := ddp.ParseUntagged(u)
		if err != nil {
			t.Fatal(err)
		}
		b = make([]byte, ddp.UntaggedLen)
		h.Put(b)
		payload = u[ddp.UntaggedLen:]
	}
	switch op, _ := rdmap.ParseControl(u[1]); op {
	case rdmap.ReadRequest:
		q, ok := rdmap.ParseReadReq(payload)
		if !ok {
			t.Fatalf("Read Request of %d octets", len(payload))
		}
		payload = make([]byte, rdmap.ReadRequestLen)
		q.Put(payload)
	case rdmap.Terminate:
		term, ok := rdmap.ParseTerm(payload)
		if !ok {
			t.Fatalf("Terminate of %d octets", len(payload))
		}
		payload = term.Append(nil)
	}
	again := mpa.AppendFPDU(nil, append(b, payload...), r.CRC != CRCOff)
	// siw pads with whatever lies there, against RFC 5044 section 4.1; a receiver does
	// not mind, and the CRC covers it.
	pad := r.wire[2+r.ULPDU : len(r.wire)-4]
	if copy(again[2+r.ULPDU:], pad); r.CRC != CRCOff {
		binary.LittleEndian.PutUint32(again[len(again)-4:], crc32.Checksum(again[:len(again)-4], castagnoli))
	}
	return again
}

// TestDeframer gives the streams of all captures to the Deframer of package mpa,
// which must find the same ULPDUs, however the stream is cut.
func TestDeframer(t *testing.T) {
	for _, name := range files(t, ".pcap") {
		rs, _ := decode(t, read(t, name))
		streams, ulpdus, crc := map[string][]byte{}, map[string][][]byte{}, map[string]bool{}
		for _, r := range rs {
			if r.Segment != nil {
				k := r.Src + ">" + r.Dst
				streams[k] = append(streams[k], r.wire...)
				ulpdus[k] = append(ulpdus[k], r.wire[2:2+r.ULPDU])
				crc[k] = r.CRC != CRCOff
			}
		}
		for k, stream := range streams {
			for _, cut := range []int{1, 7, 1448, len(stream)} {
				d := mpa.Deframer{CRC: crc[k]}
				var got [][]byte
				d.Feed(slices.Collect(slices.Chunk(stream, cut)))
				for {
					v, err := d.Next()
					if errors.Is(err, mpa.ErrShort) {
						break
					}
					if err != nil {
						t.Fatalf("%s %s, cut %d: %v", name, k, cut, err)
					}
					got = append(got, slices.Concat(v...))
				}
				if !slices.EqualFunc(got, ulpdus[k], bytes.Equal) {
					t.Errorf("%s %s, cut %d: %d ULPDUs, want %d with the same octets", name, k, cut, len(got), len(ulpdus[k]))
				}
			}
		}
	}
}
