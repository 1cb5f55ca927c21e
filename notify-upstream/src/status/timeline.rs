//! The events of notifications for the time line of a person.

use std::collections::BTreeSet;
use std::ops::Range;

use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use postern_core::{Clock, Problem};
use postern_service::timeline::{
    Timeline, TimelineEntry, TimelineQuery, TimelineSelector, TimelineSource,
};
use uuid::Uuid;

use crate::address::{AddressHash, Recipient, hash};
use crate::delivery::suppression::SuppressionList;
use crate::dispatch::ChannelFlow;
use crate::notification::NotificationId;
use crate::status::list::{ListAccess, ListFilter, ListReader};
use crate::status::view::StatusView;
use crate::store::{
    ListQuery, NotificationSnapshot, Store, StoreError, SuppressionEntry, SuppressionQuery,
};

/// Maximum number of notifications of a recipient whose events are read: the newest.
const MAX_NOTIFICATIONS: usize = 200;
/// Maximum number of addresses whose suppression is read.
const MAX_ADDRESSES: usize = 32;
/// The time around the creation of a request id of the gateway in which its notifications were
/// accepted: clocks may differ, and a request has a deadline of minutes.
const REQUEST_WINDOW_MS: Range<i64> = -60_000..600_000;
/// The time before the end of the query in which another request id is looked for.
const FOREIGN_REQUEST_WINDOW_MS: i64 = 86_400_000;
/// The time for which a notification may have events after its acceptance: it may be scheduled 30
/// days ahead and is retried for days.
const MAX_ACTIVITY_MS: i64 = 40 * 86_400_000;

/// A reader of the history of notifications.
#[derive(Clone, Debug)]
pub struct NotificationReader {
    store: Store,
    clock: Clock,
}

/// Events, and whether there are more.
#[derive(Default)]
struct Collected {
    entries: Vec<TimelineEntry>,
    /// The addresses that the notifications went to.
    addresses: BTreeSet<AddressHash>,
    is_truncated: bool,
}

impl NotificationReader {
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock }
    }

    /// Returns the events of a selection: acceptance, attempts with the replies of providers,
    /// delivery reports, and suppressions of the addresses. `subjects` are further actor ids of the
    /// person.
    pub async fn timeline(
        &self,
        query: &TimelineQuery,
        subjects: &[String],
    ) -> Result<Timeline, Exit> {
        Ok(self.read(query, subjects).await?)
    }

    pub(crate) async fn answer(&self, query: &TimelineQuery) -> Result<Timeline, Problem> {
        self.read(query, &[]).await.map_err(|error| {
            postern_core::log_outage!("database", %error, "time line not read");
            Problem::from(&error)
        })
    }

    async fn read(
        &self,
        query: &TimelineQuery,
        subjects: &[String],
    ) -> Result<Timeline, StoreError> {
        let mut collected = Collected::default();
        let mut recipients: Vec<String> = subjects.to_vec();
        match &query.selector {
            TimelineSelector::Email(email) => {
                collected.addresses.insert(hash(email.as_str()));
                recipients.push(email.as_str().to_owned());
            }
            TimelineSelector::User(subject) => recipients.push(subject.clone()),
            TimelineSelector::Notification(id) => {
                let ids = NotificationId::parse(id);
                for snapshot in self.store.read(ids.as_slice()).await? {
                    self.add(&mut collected, &snapshot);
                }
            }
            TimelineSelector::Request(id) => {
                self.add_request(&mut collected, query, id).await?;
            }
            TimelineSelector::All => {}
        }
        recipients.sort_unstable();
        recipients.dedup();
        for recipient in recipients {
            self.add_recipient(&mut collected, query, recipient).await?;
        }
        self.add_suppressions(&mut collected).await?;
        let range = query.since..query.until;
        collected.entries.retain(|entry| range.contains(&entry.at));
        let mut timeline = Timeline::of(collected.entries, query.limit);
        timeline.is_truncated |= collected.is_truncated;
        Ok(timeline)
    }

    async fn add_recipient(
        &self,
        collected: &mut Collected,
        query: &TimelineQuery,
        recipient: String,
    ) -> Result<(), StoreError> {
        let earliest = query.since.0.saturating_sub(MAX_ACTIVITY_MS).max(0);
        let reader = ListReader {
            store: &self.store,
            access: ListAccess::All,
            filter: ListFilter {
                recipient: Some(recipient),
                from: Some(Timestamp(earliest)),
                to: (query.until < Timestamp(i64::MAX)).then_some(query.until),
                ..ListFilter::default()
            },
        };
        let page = reader.page(None, MAX_NOTIFICATIONS, |snapshot| self.view(snapshot));
        let page = page.await?;
        collected.is_truncated |= page.next.is_some();
        for (_, snapshot) in &page.notifications {
            self.add(collected, snapshot);
        }
        Ok(())
    }

    /// Adds the notifications that a request created.
    async fn add_request(
        &self,
        collected: &mut Collected,
        query: &TimelineQuery,
        request_id: &str,
    ) -> Result<(), StoreError> {
        let window = request_window(request_id, query.until.min(self.clock.now()));
        let list = ListQuery {
            request: Some(request_id.to_owned()),
            from: NotificationId::floor(window.start),
            before: NotificationId::floor(window.end),
            limit: MAX_NOTIFICATIONS,
            ..ListQuery::default()
        };
        let records = self.store.list(&list).await?;
        collected.is_truncated |= records.len() == MAX_NOTIFICATIONS;
        for snapshot in self.store.with_history(records).await? {
            self.add(collected, &snapshot);
        }
        Ok(())
    }

    fn add(&self, collected: &mut Collected, snapshot: &NotificationSnapshot) {
        collected.addresses.extend(snapshot.addresses());
        let record = &snapshot.record;
        let recipient: Option<Recipient> = serde_json::from_str(&record.recipient).ok();
        let mut entries = self.view(snapshot).timeline_entries(snapshot.id);
        if let Some(first) = entries.first_mut() {
            *first = first
                .clone()
                .with("channel", Some(record.lane.channel.as_str()))
                .with("priority", Some(record.lane.priority.as_str()))
                .with("template", Some(record.template.as_str()))
                .with("creator", Some(record.creator.as_str()))
                .with("recipientKind", recipient.map(|recipient| recipient.kind()));
        }
        collected.entries.extend(entries);
    }

    fn view(&self, snapshot: &NotificationSnapshot) -> StatusView {
        let flow = |_| ChannelFlow::default();
        StatusView::of(snapshot, self.clock.earliest(), flow)
    }

    async fn add_suppressions(&self, collected: &mut Collected) -> Result<(), StoreError> {
        for address in collected.addresses.iter().take(MAX_ADDRESSES) {
            let query = SuppressionQuery {
                kinds: SuppressionList::all_kinds(),
                address: Some(*address),
                after: None,
                limit: 16,
            };
            let found = self.store.suppression_entries(&query).await?;
            collected.entries.extend(found.into_iter().map(suppression));
        }
        Ok(())
    }
}

/// Returns the time in which the notifications of a request were accepted. A request id of the
/// gateway contains the time of the request (UUID of version 7, RFC 9562 section 5.7).
fn request_window(request_id: &str, until: Timestamp) -> Range<Timestamp> {
    let id = Uuid::try_parse(request_id).ok();
    let id = id.filter(|id| id.get_version_num() == 7);
    let created_at = id.and_then(|id| id.get_timestamp());
    let created_at = created_at.and_then(|time| i64::try_from(time.to_unix().0).ok());
    let Range { start, end } = match created_at {
        Some(seconds) => {
            let at = seconds.saturating_mul(1_000);
            at.saturating_add(REQUEST_WINDOW_MS.start)..at.saturating_add(REQUEST_WINDOW_MS.end)
        }
        None => until.0.saturating_sub(FOREIGN_REQUEST_WINDOW_MS)..until.0,
    };
    Timestamp(start.max(0))..Timestamp(end.max(0))
}

fn suppression(entry: SuppressionEntry) -> TimelineEntry {
    let list = SuppressionList::of_kind(entry.kind);
    let event = list.map_or("SUPPRESSED".to_owned(), |(list, _)| {
        list.as_str().to_ascii_uppercase()
    });
    let mut suppressed = TimelineEntry::new(entry.at, TimelineSource::Notify, event)
        .with("channel", list.map(|(_, channel)| channel.as_str()))
        .with("addressHash", Some(hex::encode(&entry.address)));
    suppressed.outcome = Some(entry.reason);
    suppressed
}
