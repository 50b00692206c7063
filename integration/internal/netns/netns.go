// Package netns makes what the privileged tests and the benchmark stand on: a
// network namespace with a bridge, pre-made TAPs on it, and further namespaces
// behind veth pairs. Nothing of it is visible from the namespace it was made
// in, and all of it is gone after Close and the end of the processes within.
package netns
