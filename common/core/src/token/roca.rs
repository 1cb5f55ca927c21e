//! Detection of RSA moduli of a flawed generator (CVE-2017-15361, "ROCA"), whose private keys can
//! be computed from the public keys.

/// Odd primes up to 167. Primes of the flawed generator are powers of 65537 modulo the product of
/// these.
const PRIMES: [u32; 38] = [
    3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97,
    101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
];

const GENERATOR: u32 = 65537;

/// Returns whether a big-endian modulus is a power of 65537 modulo each of the primes. A random
/// modulus is so with a probability of about 2^-27.
pub(super) fn is_weak(modulus: &[u8]) -> bool {
    let mut primes = PRIMES.iter();
    primes.all(|prime| is_power_of_generator(remainder(modulus, *prime), *prime))
}

fn remainder(number: &[u8], prime: u32) -> u32 {
    let add = |rest, byte: &u8| (rest * 256 + u32::from(*byte)) % prime;
    number.iter().fold(0, add)
}

fn is_power_of_generator(value: u32, prime: u32) -> bool {
    let mut power = 1;
    for _ in 1..prime {
        if power == value {
            return true;
        }
        power = power * (GENERATOR % prime) % prime;
    }
    false
}
