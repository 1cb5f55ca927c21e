//! The gateway over real sockets: what an origin gets to see, byte by byte, and what a client is told.

mod answers;
mod bodies;
mod breaks;
mod decisions;
mod door;
mod encrypted;
mod front;
mod handover;
mod harness;
mod http10;
mod http2;
mod http2_frames;
mod http2_upstream;
mod origin;
mod rates;
mod refusals;
mod reload;
mod requests;
mod slowness;
mod sockets;
mod stop;
mod traced;
mod upgrade;
mod upstreams;
mod ways;
