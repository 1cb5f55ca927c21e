//! A minimal Redis client.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

/// Runs a script on the server of a `redis://` URL and returns its integer result.
pub(crate) fn eval(url: &str, script: &str) -> io::Result<i64> {
    let address = url
        .trim_start_matches("redis://")
        .split('/')
        .next()
        .unwrap_or_default();
    let mut stream = TcpStream::connect(address)?;
    let words = ["EVAL", script, "0"];
    write!(stream, "*{}\r\n", words.len())?;
    for word in words {
        write!(stream, "${}\r\n{word}\r\n", word.len())?;
    }
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    let number = answer
        .trim_end()
        .strip_prefix(':')
        .and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("Redis returned {}", answer.trim_end())))
}
