//! The gateway over real sockets: what an origin gets to see, byte by byte, and what a client is told.

mod encrypted;
mod handover;
mod harness;
mod origin;
mod rates;
mod refusals;
mod reload;
mod requests;
mod slowness;
mod stop;
mod traced;
mod upgrade;
mod upstreams;
