use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::LoadPace;
use crate::rounds::LoadRequest;

/// Keep-alive connections, with one request at a time each.
const CONNECTIONS: usize = 64;

/// Time after the last due request after which missing responses count as failed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The reported percentiles.
pub(crate) const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// Minimum fraction of requests that must be answered. The others are in no percentile, so that the
/// tail of a run with more of them is unknown.
const MIN_ACHIEVED_FRACTION: f64 = 0.99;

/// The result of a run at a fixed rate. A latency counts from the time when its request was due,
/// not from when it was sent, so that a stall of the server affects every request that it delayed
/// (coordinated omission).
#[derive(Clone, Debug)]
pub(crate) struct PacedResult {
    /// Requests that were due.
    pub(crate) asked: u64,
    /// Requests with a correct response.
    pub(crate) requests: u64,
    /// Requests with a wrong response, none, or a broken connection. Requests that were not sent
    /// because all connections were busy are the rest of `asked`.
    pub(crate) failed: u64,
    /// Percentiles and their latency in milliseconds, ascending.
    pub(super) percentiles: Vec<(f64, f64)>,
}

// === impl PacedResult ===

impl PacedResult {
    /// Sends the request `per_second` times a second at equal intervals, whether responses arrive
    /// or not, for `seconds`.
    ///
    /// Uses one thread that waits for sockets and for the next due time, and preallocates the list
    /// of latencies: reallocation would pause the generator and add to the measured tail.
    ///
    /// # Errors
    /// The first response is wrong, or the connection is refused.
    pub(crate) fn run(
        peer: &str,
        address: SocketAddr,
        question: &LoadRequest<'_>,
        LoadPace {
            per_second,
            seconds,
        }: LoadPace,
    ) -> io::Result<Self> {
        let mut generator = LoadGenerator {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            address,
            request: question.request(address),
            answer_bytes: question.answer_bytes(peer, address)?,
            body: question.body.as_bytes(),
            connections: Vec::with_capacity(CONNECTIONS),
            idle: (0..CONNECTIONS).collect(),
            latencies_us: Vec::new(),
            failed: 0,
        };
        for number in 0..CONNECTIONS {
            let connection = generator.connect(number)?;
            generator.connections.push(connection);
        }
        generator.run(
            u64::from(per_second) * u64::from(seconds),
            f64::from(per_second),
        )
    }

    /// Returns the latency at one of [`PERCENTILES`] in milliseconds.
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        let told = self
            .percentiles
            .iter()
            .find(|(known, _)| (known - percentile).abs() < 1e-9);
        told.map_or(f64::NAN, |(_, millis)| *millis)
    }

    /// Returns the achieved fraction of the requested rate.
    pub(crate) fn achieved(&self) -> f64 {
        self.requests as f64 / self.asked.max(1) as f64
    }

    /// Returns whether the server and the generator achieved the rate.
    pub(crate) fn is_rate_achieved(&self) -> bool {
        self.achieved() >= MIN_ACHIEVED_FRACTION
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "asked": self.asked, "answered": self.requests, "failed": self.failed,
            "percentilesMs": self.percentiles,
        })
    }
}

struct LoadGenerator<'a> {
    epoll: OwnedFd,
    address: SocketAddr,
    request: String,
    answer_bytes: usize,
    body: &'a [u8],
    connections: Vec<PacedConnection>,
    /// Idle connections, longest idle first.
    idle: VecDeque<usize>,
    latencies_us: Vec<u32>,
    failed: u64,
}

struct PacedConnection {
    stream: TcpStream,
    due: Instant,
    answer: Vec<u8>,
}

// === impl LoadGenerator ===

impl LoadGenerator<'_> {
    fn connect(&self, number: usize) -> io::Result<PacedConnection> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN)?;
        Ok(PacedConnection {
            stream,
            due: Instant::now(),
            answer: Vec::with_capacity(self.answer_bytes),
        })
    }

    fn run(mut self, asked: u64, per_second: f64) -> io::Result<PacedResult> {
        // Writes every page once, because the first access to a page is a pause as well.
        self.latencies_us = vec![1; asked as usize];
        self.latencies_us.clear();
        let mut events = Vec::with_capacity(CONNECTIONS);
        let began = Instant::now();
        let due = |number: u64| began + Duration::from_secs_f64(number as f64 / per_second);
        let last = due(asked);
        let mut sent = 0;
        loop {
            let now = Instant::now();
            while sent < asked && due(sent) <= now && now < last {
                let Some(number) = self.idle.pop_front() else {
                    break;
                };
                self.send(number, due(sent))?;
                sent += 1;
            }
            let is_over = sent == asked || now >= last;
            if is_over && (self.idle.len() == CONNECTIONS || now >= last + RESPONSE_TIMEOUT) {
                break;
            }
            let next = match (is_over, self.idle.is_empty()) {
                (true, _) => last + RESPONSE_TIMEOUT,
                (false, true) => last,
                (false, false) => due(sent),
            };
            wait(&self.epoll, &mut events, next)?;
            for event in events.drain(..) {
                self.read(event.data.u64() as usize)?;
            }
        }
        self.failed += (CONNECTIONS - self.idle.len()) as u64;
        Ok(self.into_result(asked))
    }

    fn send(&mut self, number: usize, due: Instant) -> io::Result<()> {
        let connection = &mut self.connections[number];
        connection.due = due;
        match connection.stream.write(self.request.as_bytes()) {
            Ok(written) if written == self.request.len() => Ok(()),
            _ => self.fail(number),
        }
    }

    /// Reads available bytes of a response. The connection becomes idle when the response is
    /// complete.
    fn read(&mut self, number: usize) -> io::Result<()> {
        let connection = &mut self.connections[number];
        let mut space = [0; 4 << 10];
        match connection.stream.read(&mut space) {
            Ok(0) => return self.fail(number),
            Ok(read) => connection.answer.extend_from_slice(&space[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return self.fail(number),
        }
        let answer = &mut connection.answer;
        let is_right = answer.starts_with(b"HTTP/1.1 200 ");
        if is_right && answer.len() < self.answer_bytes {
            return Ok(());
        }
        if !is_right || answer.len() > self.answer_bytes || !answer.ends_with(self.body) {
            return self.fail(number);
        }
        answer.clear();
        self.latencies_us.push(
            connection
                .due
                .elapsed()
                .as_micros()
                .try_into()
                .unwrap_or(u32::MAX),
        );
        self.idle.push_back(number);
        Ok(())
    }

    /// Counts a failed request. Its connection is replaced.
    fn fail(&mut self, number: usize) -> io::Result<()> {
        if !self.idle.contains(&number) {
            self.failed += 1;
            self.idle.push_back(number);
        }
        self.connections[number] = self.connect(number)?;
        Ok(())
    }

    fn into_result(mut self, asked: u64) -> PacedResult {
        self.latencies_us.sort_unstable();
        let count = self.latencies_us.len();
        let millis = |percentile: f64| {
            let rank = (percentile / 100.0 * count as f64).ceil() as usize;
            self.latencies_us
                .get(rank.max(1) - 1)
                .map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
        };
        PacedResult {
            asked,
            requests: count as u64,
            failed: self.failed,
            percentiles: PERCENTILES.iter().map(|at| (*at, millis(*at))).collect(),
        }
    }
}

/// Waits for a socket event, or until `next`. Uses `poll`, whose timeouts are finer than the whole
/// milliseconds of `epoll_wait`.
fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, next: Instant) -> io::Result<()> {
    let timeout = Timespec::try_from(next.saturating_duration_since(Instant::now()));
    let timeout = timeout.map_err(io::Error::other)?;
    let woken = poll(&mut [PollFd::new(epoll, PollFlags::IN)], Some(&timeout))
        .and_then(|_| epoll::wait(epoll, spare_capacity(events), Some(&Timespec::default())));
    match woken {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const CORRECT_RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    /// Starts a server that answers each connection on a separate thread with `answer` of the
    /// elapsed time. An empty response closes the connection.
    fn serve(answer: impl Fn(Duration) -> &'static str + Send + Copy + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let began = Instant::now();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                thread::spawn(move || {
                    while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {
                        let answer = answer(began.elapsed());
                        if answer.is_empty() || stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn ask(answer: impl Fn(Duration) -> &'static str + Send + Copy + 'static) -> PacedResult {
        let question = LoadRequest {
            path: "/",
            token: "token",
            body: "ok",
        };
        let pace = LoadPace {
            per_second: 1_000,
            seconds: 1,
        };
        PacedResult::run("the server", serve(answer), &question, pace).expect("a run")
    }

    #[test]
    fn stall_affects_every_delayed_request() {
        let (from, to) = (Duration::from_millis(400), Duration::from_millis(700));
        let seen = ask(move |at| {
            if at > from && at < to {
                thread::sleep(to - at);
            }
            CORRECT_RESPONSE
        });
        assert_eq!((seen.asked, seen.failed), (1_000, 0));
        // Of 1,000 requests, 300 were due during the stall, half of them more than 150 ms before
        // its end. Counting from the time of sending would show only 64.
        assert!(seen.at(90.0) > 150.0, "{seen:?}");
    }

    #[test]
    fn wrong_closed_and_missing_responses_have_failed() {
        let half = Duration::from_millis(500);
        let wrong = |answer| ask(move |at| if at < half { CORRECT_RESPONSE } else { answer });
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok!",
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
            "",
        ] {
            let seen = wrong(answer);
            assert!(seen.failed > 300, "{answer:?}: {seen:?}");
            assert!(!seen.is_rate_achieved());
        }
        // Less than a complete response: the connections wait for the rest, so that only 64
        // requests are sent.
        let seen = wrong("HTTP/1.1 200 OK\r\n");
        assert_eq!(seen.failed, CONNECTIONS as u64, "{seen:?}");
        assert!(!seen.is_rate_achieved());
    }
}
