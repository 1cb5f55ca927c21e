//! Code shared by benchmarks, the cost guard and the allocation test: the measured paths, a token
//! signer, and the empty pass-through that the gateway is compared with.

pub mod allocation;
pub mod passthrough;
pub mod paths;
pub mod setup;
pub mod token;
