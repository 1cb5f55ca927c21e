//! What benchmarks, the cost guard and the allocations test share: the paths that are measured, a
//! signer of tokens, and the empty pass-through that the gateway is compared with.

pub mod allocation;
pub mod passthrough;
pub mod paths;
pub mod setup;
pub mod token;
