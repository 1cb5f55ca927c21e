//! What the micro benchmarks and the cost guard execute. `bench/run` and `bench/compare` measure
//! running programs.

pub mod paths;
pub mod token;
