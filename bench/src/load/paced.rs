use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::rounds::Question;

/// Keep-alive connections; each asks one thing at a time.
const CONNECTIONS: usize = 64;

/// An answer that is not there so long after the last request was due has failed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The percentiles that are kept.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// The share of the requests that must have been answered. The others are in no percentile: the
/// more there are of them, the more of its tail a run has not seen.
const IN_TIME: f64 = 0.99;

/// What a paced run saw. A latency counts from when its request was due, not from when a busy
/// connection came to send it, so that a stall of the server shows in every request that it held up
/// (coordinated omission).
#[derive(Clone, Debug)]
pub(crate) struct Paced {
    /// Requests that were due.
    pub(crate) asked: u64,
    /// Those that were answered rightly.
    pub(crate) requests: u64,
    /// Those that were answered wrongly, or not, or whose connection broke. What was due and could
    /// not even be sent, for all connections were busy, is what remains of `asked`.
    pub(crate) failed: u64,
    /// Percentile and milliseconds, ascending.
    pub(super) percentiles: Vec<(f64, f64)>,
}

// === impl Paced ===

impl Paced {
    /// Asks the question `per_second` times a second, evenly, whether answers come or not, for
    /// `seconds`.
    ///
    /// One thread that waits for the sockets and for the next time due, and room for all latencies
    /// from the beginning: a generator that pauses to move its growing list is seen in the tail of
    /// everybody whom it measures.
    ///
    /// # Errors
    /// When the first answer is wrong, or nothing listens there.
    pub(crate) fn run(
        peer: &str,
        address: SocketAddr,
        question: &Question<'_>,
        (per_second, seconds): (u32, u32),
    ) -> io::Result<Self> {
        let mut generator = Generator {
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

    /// Milliseconds at one of [`PERCENTILES`].
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        let told = self
            .percentiles
            .iter()
            .find(|(known, _)| (known - percentile).abs() < 1e-9);
        told.map_or(f64::NAN, |(_, millis)| *millis)
    }

    /// The share of the asked rate that was achieved.
    pub(crate) fn achieved(&self) -> f64 {
        self.requests as f64 / self.asked.max(1) as f64
    }

    /// Whether the rate was kept, by the server and by the generator.
    pub(crate) fn is_in_time(&self) -> bool {
        self.achieved() >= IN_TIME
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "asked": self.asked, "answered": self.requests, "failed": self.failed,
            "percentilesMs": self.percentiles,
        })
    }
}

struct Generator<'a> {
    epoll: OwnedFd,
    address: SocketAddr,
    request: String,
    answer_bytes: usize,
    body: &'a [u8],
    connections: Vec<Connection>,
    /// Who has nothing to do; who waited longest is next.
    idle: VecDeque<usize>,
    latencies_us: Vec<u32>,
    failed: u64,
}

struct Connection {
    stream: TcpStream,
    due: Instant,
    answer: Vec<u8>,
}

// === impl Generator ===

impl Generator<'_> {
    fn connect(&self, number: usize) -> io::Result<Connection> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN)?;
        Ok(Connection {
            stream,
            due: Instant::now(),
            answer: Vec::with_capacity(self.answer_bytes),
        })
    }

    fn run(mut self, asked: u64, per_second: f64) -> io::Result<Paced> {
        // Written to once: a page that is touched for the first time is a pause too.
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
            if is_over && (self.idle.len() == CONNECTIONS || now >= last + PATIENCE) {
                break;
            }
            let next = match (is_over, self.idle.is_empty()) {
                (true, _) => last + PATIENCE,
                (false, true) => last,
                (false, false) => due(sent),
            };
            wait(&self.epoll, &mut events, next)?;
            for event in events.drain(..) {
                self.read(event.data.u64() as usize)?;
            }
        }
        self.failed += (CONNECTIONS - self.idle.len()) as u64;
        Ok(self.tell(asked))
    }

    fn send(&mut self, number: usize, due: Instant) -> io::Result<()> {
        let connection = &mut self.connections[number];
        connection.due = due;
        match connection.stream.write(self.request.as_bytes()) {
            Ok(written) if written == self.request.len() => Ok(()),
            _ => self.fail(number),
        }
    }

    /// What has come of an answer; the connection is idle again when it is whole.
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

    /// A request has failed, and its connection with it, if it was under way: another takes its
    /// place.
    fn fail(&mut self, number: usize) -> io::Result<()> {
        if !self.idle.contains(&number) {
            self.failed += 1;
            self.idle.push_back(number);
        }
        self.connections[number] = self.connect(number)?;
        Ok(())
    }

    fn tell(mut self, asked: u64) -> Paced {
        self.latencies_us.sort_unstable();
        let count = self.latencies_us.len();
        let millis = |percentile: f64| {
            let rank = (percentile / 100.0 * count as f64).ceil() as usize;
            self.latencies_us
                .get(rank.max(1) - 1)
                .map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
        };
        Paced {
            asked,
            requests: count as u64,
            failed: self.failed,
            percentiles: PERCENTILES.iter().map(|at| (*at, millis(*at))).collect(),
        }
    }
}

/// Waits until a socket has something to say, or until `next`. By `poll`, whose timeouts are finer
/// than the whole milliseconds of `epoll_wait`.
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

    const RIGHT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    /// Answers each connection on a thread of its own, by what `answer` says at that time; an empty
    /// answer closes.
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

    fn ask(answer: impl Fn(Duration) -> &'static str + Send + Copy + 'static) -> Paced {
        let question = Question {
            path: "/",
            token: "token",
            body: "ok",
        };
        Paced::run("the server", serve(answer), &question, (1_000, 1)).expect("a run")
    }

    #[test]
    fn a_stall_is_seen_in_every_request_that_it_held_up() {
        let (from, to) = (Duration::from_millis(400), Duration::from_millis(700));
        let seen = ask(move |at| {
            if at > from && at < to {
                thread::sleep(to - at);
            }
            RIGHT
        });
        assert_eq!((seen.asked, seen.failed), (1_000, 0));
        // Of 1,000, 300 were due while nothing moved, half of them more than 150 ms before its end.
        // The connections alone would tell of 64.
        assert!(seen.at(90.0) > 150.0, "{seen:?}");
    }

    #[test]
    fn what_is_wrong_closed_or_never_answered_has_failed() {
        let half = Duration::from_millis(500);
        let wrong = |answer| ask(move |at| if at < half { RIGHT } else { answer });
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok!",
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
            "",
        ] {
            let seen = wrong(answer);
            assert!(seen.failed > 300, "{answer:?}: {seen:?}");
            assert!(!seen.is_in_time());
        }
        // Less than a whole answer: the connections wait for the rest, and 64 are all that could
        // ask.
        let seen = wrong("HTTP/1.1 200 OK\r\n");
        assert_eq!(seen.failed, CONNECTIONS as u64, "{seen:?}");
        assert!(!seen.is_in_time());
    }
}
