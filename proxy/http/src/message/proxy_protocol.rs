//! Headers of the PROXY protocol, versions 1 and 2, which precede the first byte of a connection
//! (<https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes of a header of version 1.
const V1_SIGNATURE: &[u8] = b"PROXY ";

/// Maximum bytes of a header of version 1, with CRLF (section 2.1).
const MAX_V1_BYTES: usize = 107;

/// The first bytes of a header of version 2.
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of a header of version 2 before the addresses.
const V2_FIXED_BYTES: usize = 16;

/// Maximum bytes of a header; the protocol permits 64 KiB of extensions.
pub const MAX_HEADER_BYTES: usize = 4 << 10;

/// Type of the extension with the checksum of the header (section 2.2.3).
const TLV_CRC32C: u8 = 0x03;

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedHeader {
    /// All bytes belong to a header that is not complete.
    Incomplete,
    /// A complete header.
    Complete {
        /// Its length in bytes.
        length: usize,
        /// The address of the client, with port 0 if that is not known; `None` if the address of the
        /// connection itself applies (LOCAL, UNKNOWN, UNSPEC).
        source: Option<SocketAddr>,
    },
}

/// The reason for which the first bytes of a connection are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// They do not begin a header.
    Missing,
    /// The header is malformed or too long, or its checksum is wrong.
    Malformed,
}

/// Parses a header at the beginning of `bytes`. Extensions (TLVs) are skipped, except the checksum.
///
/// # Errors
/// The bytes do not begin a valid header, whatever follows.
pub fn parse(bytes: &[u8]) -> Result<ParsedHeader, HeaderFault> {
    let begins_with = |signature: &[u8]| {
        let compared = bytes.len().min(signature.len());
        bytes[..compared] == signature[..compared]
    };
    if begins_with(V1_SIGNATURE) {
        return parse_v1(bytes);
    }
    if begins_with(V2_SIGNATURE) {
        return parse_v2(bytes);
    }
    Err(HeaderFault::Missing)
}

fn parse_v1(bytes: &[u8]) -> Result<ParsedHeader, HeaderFault> {
    let bytes = &bytes[..bytes.len().min(MAX_V1_BYTES)];
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return match bytes.len() {
            MAX_V1_BYTES => Err(HeaderFault::Malformed),
            _ => Ok(ParsedHeader::Incomplete),
        };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| HeaderFault::Malformed)?;
    let words: Vec<&str> = line.split(' ').collect();
    let source = match words.as_slice() {
        // The rest of the line has no meaning.
        [_, "UNKNOWN", ..] => None,
        [_, family @ ("TCP4" | "TCP6"), source, destination, from, to] => {
            let address = |text: &str, port: &str| {
                let ip = match *family {
                    "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::from).ok()?,
                    _ => text.parse::<Ipv6Addr>().map(IpAddr::from).ok()?,
                };
                Some(SocketAddr::new(ip.to_canonical(), parse_port(port)?))
            };
            let (source, destination) = (address(source, from), address(destination, to));
            let known = source.zip(destination).ok_or(HeaderFault::Malformed)?;
            Some(known.0)
        }
        _ => return Err(HeaderFault::Malformed),
    };
    Ok(ParsedHeader::Complete {
        length: end + 2,
        source,
    })
}

/// Parses a decimal port without sign and leading zeros.
fn parse_port(text: &str) -> Option<u16> {
    let is_canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_canonical)
}

fn parse_v2(bytes: &[u8]) -> Result<ParsedHeader, HeaderFault> {
    let Some(fixed) = bytes.get(..V2_FIXED_BYTES) else {
        return Ok(ParsedHeader::Incomplete);
    };
    let length = V2_FIXED_BYTES + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let (is_proxied, address_bytes) = match (fixed[12], fixed[13]) {
        (0x20, _) => (false, 0),
        (0x21, 0x00) => (false, 0),
        (0x21, 0x11) => (true, 12),
        (0x21, 0x21) => (true, 36),
        // Another version or command, a datagram, or a Unix socket, which has no IP address.
        _ => return Err(HeaderFault::Malformed),
    };
    if length > MAX_HEADER_BYTES || length < V2_FIXED_BYTES + address_bytes {
        return Err(HeaderFault::Malformed);
    }
    let Some(header) = bytes.get(..length) else {
        return Ok(ParsedHeader::Incomplete);
    };
    // LOCAL and UNSPEC: the receiver must ignore what follows (section 2.2).
    let source = match is_proxied {
        true => {
            check_extensions(header, V2_FIXED_BYTES + address_bytes)?;
            v2_source(&header[V2_FIXED_BYTES..][..address_bytes])
        }
        false => None,
    };
    Ok(ParsedHeader::Complete { length, source })
}

/// Reads the first of two addresses of the same size, and of two ports after them.
fn v2_source(bytes: &[u8]) -> Option<SocketAddr> {
    let size = (bytes.len() - 4) / 2;
    let v4 = <[u8; 4]>::try_from(&bytes[..size]).map(IpAddr::from);
    let ip = v4.or_else(|_| <[u8; 16]>::try_from(&bytes[..size]).map(IpAddr::from));
    let port = u16::from_be_bytes([bytes[2 * size], bytes[2 * size + 1]]);
    Some(SocketAddr::new(ip.ok()?.to_canonical(), port))
}

/// Checks that the extensions from `start` fill the header, and its checksum if it has one.
fn check_extensions(header: &[u8], start: usize) -> Result<(), HeaderFault> {
    let mut at = start;
    while at < header.len() {
        let [kind, high, low] = *header
            .get(at..at + 3)
            .and_then(|bytes| <&[u8; 3]>::try_from(bytes).ok())
            .ok_or(HeaderFault::Malformed)?;
        let value = at + 3;
        let end = value + usize::from(u16::from_be_bytes([high, low]));
        let content = header.get(value..end).ok_or(HeaderFault::Malformed)?;
        if kind == TLV_CRC32C {
            let mut blanked = header.to_vec();
            blanked[value..end].fill(0);
            if content != crc32c(&blanked).to_be_bytes() {
                return Err(HeaderFault::Malformed);
            }
        }
        at = end;
    }
    Ok(())
}

/// Returns the CRC-32C (RFC 9260 appendix A) of a header, which is short.
fn crc32c(bytes: &[u8]) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0x82f6_3b78;
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (REVERSED_POLYNOMIAL * (crc & 1))
        })
    });
    !crc
}

#[cfg(test)]
mod tests;
