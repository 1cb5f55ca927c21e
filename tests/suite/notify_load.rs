//! Clients that retry until their notification is accepted while processes are killed, and checks
//! of the provider's record.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::notify_cluster::{Call, EVENT_POLL_TIMEOUT, NotifyCluster, Replica};

/// Concurrent clients.
const CLIENTS: usize = 4;
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// An accepted notification.
#[derive(Clone, Debug)]
pub(crate) struct Accepted {
    pub(crate) id: String,
    pub(crate) at: Instant,
}

/// Clients that post until they are stopped.
pub(crate) struct Load {
    targets: watch::Sender<Vec<String>>,
    accepted: watch::Sender<usize>,
    stop: watch::Sender<bool>,
}

impl Load {
    pub(crate) fn on(replicas: &[Replica]) -> Self {
        let (targets, accepted) = (watch::Sender::new(urls(replicas)), watch::Sender::new(0));
        Self {
            targets,
            accepted,
            stop: watch::Sender::new(false),
        }
    }

    /// Returns everything accepted until the end of `faults`.
    pub(crate) async fn during<T>(
        &self,
        cluster: &NotifyCluster,
        faults: impl Future<Output = T>,
    ) -> (Vec<Vec<Accepted>>, T) {
        let posters = join_all((0..CLIENTS).map(|poster| self.post(cluster, poster)));
        let faults = async {
            let outcome = faults.await;
            self.stop.send_replace(true);
            outcome
        };
        tokio::join!(posters, faults)
    }

    /// Waits until `more` notifications are accepted.
    pub(crate) async fn wait_for_accepted(&self, more: usize) {
        let mut accepted = self.accepted.subscribe();
        let wanted = *accepted.borrow_and_update() + more;
        let reached =
            tokio::time::timeout(STEP_TIMEOUT, accepted.wait_for(|count| *count >= wanted)).await;
        let _ = reached
            .expect("notifications are accepted within a minute")
            .expect("the counter exists");
    }

    /// Sets the replicas for the following requests.
    pub(crate) fn set_replicas(&self, replicas: &[Replica]) {
        self.targets.send_replace(urls(replicas));
    }

    /// Announces that a component has recovered, so that clients retry.
    pub(crate) fn retry_now(&self) {
        self.targets.send_modify(|_| {});
    }

    /// Posts until the stop, one notification after the other, each with its own key and to any
    /// replica that responds, until it is accepted.
    async fn post(&self, cluster: &NotifyCluster, poster: usize) -> Vec<Accepted> {
        let mut stop = self.stop.subscribe();
        let mut done = Vec::new();
        while !*stop.borrow_and_update() {
            let number = done.len();
            let name = format!("p{poster}-{number}");
            let mut targets = self.targets.subscribe();
            let id = loop {
                let urls = targets.borrow_and_update().clone();
                let posted = match urls.get(number % urls.len().max(1)) {
                    Some(url) => cluster.try_post(url, &name, &name, "NORMAL").await,
                    None => None,
                };
                match posted {
                    Some(posted) => break posted,
                    // Wait until a component has recovered, or a short time.
                    None => drop(tokio::time::timeout(EVENT_POLL_TIMEOUT, targets.changed()).await),
                }
            };
            done.push(Accepted {
                id,
                at: Instant::now(),
            });
            self.accepted.send_modify(|count| *count += 1);
        }
        done
    }
}

fn urls(replicas: &[Replica]) -> Vec<String> {
    replicas.iter().map(|replica| replica.url.clone()).collect()
}

/// Evaluates the provider's record once it contains everything accepted.
pub(crate) async fn verdict(
    cluster: &NotifyCluster,
    posted: &[Vec<Accepted>],
    kills: &[Kill],
) -> Verdict {
    let ids: BTreeSet<&str> = posted
        .iter()
        .flatten()
        .map(|accepted| accepted.id.as_str())
        .collect();
    let calls = cluster.provider.until(STEP_TIMEOUT, |calls| {
        calls.len() >= ids.len()
            && ids.is_subset(&calls.iter().map(|call| call.id.as_str()).collect())
    });
    Verdict::of(posted, &calls.await, kills)
}

/// A kill of a component.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    pub(crate) at: Instant,
    /// Time of recovery; equal to the kill if other processes continue.
    pub(crate) recovered_at: Instant,
}

impl Kill {
    pub(crate) fn now() -> Self {
        let at = Instant::now();
        Self {
            at,
            recovered_at: at,
        }
    }

    /// Returns the time between two instants during which no process could work.
    fn outage_within(&self, from: Instant, to: Instant) -> Duration {
        self.recovered_at
            .min(to)
            .saturating_duration_since(self.at.max(from))
    }
}

/// The evaluation of the provider's record.
pub(crate) struct Verdict {
    pub(crate) accepted: usize,
    pub(crate) lost: Vec<String>,
    /// Calls beyond the first of each notification.
    pub(crate) extra: usize,
    /// Calls for notifications whose acceptance was not reported.
    pub(crate) unknown: usize,
    /// Maximum time from a kill to the delivery of a notification accepted before it, without the
    /// outage of the database.
    pub(crate) slowest_takeover: Duration,
}

impl Verdict {
    pub(crate) fn of(posted: &[Vec<Accepted>], calls: &[Call], kills: &[Kill]) -> Self {
        let mut first: HashMap<&str, Instant> = HashMap::new();
        for call in calls {
            first.entry(&call.id).or_insert(call.at);
        }
        let all: Vec<&Accepted> = posted.iter().flatten().collect();
        let known: BTreeSet<&str> = all.iter().map(|accepted| accepted.id.as_str()).collect();
        let lost = all
            .iter()
            .filter(|accepted| !first.contains_key(accepted.id.as_str()));
        let takeover_times = kills.iter().flat_map(|kill| {
            let before = all.iter().filter(move |accepted| accepted.at <= kill.at);
            before.filter_map(|accepted| {
                let called = *first.get(accepted.id.as_str())?;
                let outage: Duration = kills
                    .iter()
                    .map(|other| other.outage_within(kill.at, called))
                    .sum();
                Some(
                    called
                        .saturating_duration_since(kill.at)
                        .saturating_sub(outage),
                )
            })
        });
        Self {
            accepted: all.len(),
            lost: lost.map(|accepted| accepted.id.clone()).collect(),
            extra: calls.len() - first.len(),
            unknown: first.keys().filter(|id| !known.contains(*id)).count(),
            slowest_takeover: takeover_times.max().unwrap_or_default(),
        }
    }
}
