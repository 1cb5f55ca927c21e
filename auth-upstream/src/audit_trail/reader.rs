//! Reading the audit trail: the events of a person or a request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use postern_service::timeline::{
    Timeline, TimelineEntry, TimelineQuery, TimelineSelector, TimelineSource,
};

use crate::crypto::KeyRing;
use crate::store::{AuditQuery, AuditRow, AuditSelector, AuthStore, StoreError};

/// Maximum number of subjects of an address, and of addresses of a subject, whose events are read.
/// Most people have one of each.
const MAX_RELATED: usize = 16;

/// A reader of the audit trail.
#[derive(Clone, Debug)]
pub struct AuditReader {
    pub(super) store: AuthStore,
    pub(super) key_ring: Arc<KeyRing>,
}

/// Events by time and id, so that one that several selections contain is returned once.
type RowsInOrder = BTreeMap<(i64, String), AuditRow>;

// === impl AuditReader ===

impl AuditReader {
    pub(crate) fn new(store: AuthStore, key_ring: Arc<KeyRing>) -> Self {
        Self { store, key_ring }
    }

    /// Returns the events of a selection. A person's events are those of the subject and those of
    /// the e-mail address: a failed sign-in names an address only, a refresh a subject only.
    ///
    /// # Errors
    /// Exit status 69 if the database is unavailable.
    pub async fn timeline(&self, query: &TimelineQuery) -> Result<Timeline, Exit> {
        self.read(query)
            .await
            .map_err(|error| Exit::unavailable(error.to_string()))
    }

    pub(crate) async fn read(&self, query: &TimelineQuery) -> Result<Timeline, StoreError> {
        let first = match &query.selector {
            TimelineSelector::Email(email) => {
                let hashes = self.key_ring.email_hashes(email.as_str()).into_iter();
                hashes.map(AuditSelector::EmailHash).collect()
            }
            TimelineSelector::User(subject) => vec![AuditSelector::Subject(subject.clone())],
            TimelineSelector::Request(id) => vec![AuditSelector::RequestId(id.clone())],
            TimelineSelector::Notification(_) => Vec::new(),
            TimelineSelector::All => vec![AuditSelector::All],
        };
        let mut rows = RowsInOrder::new();
        self.select(query, first, &mut rows).await?;
        if let TimelineSelector::Email(_) = &query.selector {
            let subjects = subjects(&rows).into_iter().map(AuditSelector::Subject);
            self.select(query, subjects.collect(), &mut rows).await?;
        } else if let TimelineSelector::User(_) = &query.selector {
            let hashes = rows.values().filter_map(|row| row.email_hash.clone());
            let hashes: BTreeSet<_> = hashes.collect();
            let hashes = hashes.into_iter().map(AuditSelector::EmailHash);
            self.select(query, hashes.collect(), &mut rows).await?;
        }
        let subjects = subjects(&rows);
        let entries = rows.into_values().map(entry).collect();
        let mut timeline = Timeline::of(entries, query.limit);
        timeline.subjects = subjects.into_iter().collect();
        Ok(timeline)
    }

    /// Adds the newest events of each selection.
    async fn select(
        &self,
        query: &TimelineQuery,
        selectors: Vec<AuditSelector>,
        rows: &mut RowsInOrder,
    ) -> Result<(), StoreError> {
        for selector in selectors.into_iter().take(MAX_RELATED) {
            let query = AuditQuery {
                selector,
                since: query.since,
                until: query.until,
                after: None,
                // One more shows that older ones are left out.
                limit: i64::try_from(query.limit + 1).unwrap_or(i64::MAX),
            };
            for row in self.store.audit_rows(&query).await? {
                rows.insert((row.at, row.id.clone()), row);
            }
        }
        Ok(())
    }
}

fn subjects(rows: &RowsInOrder) -> BTreeSet<String> {
    rows.values()
        .filter_map(|row| row.subject.clone())
        .collect()
}

fn entry(row: AuditRow) -> TimelineEntry {
    let mut entry = TimelineEntry::new(Timestamp(row.at), TimelineSource::Auth, row.operation)
        .with("reason", row.reason)
        .with("requestId", Some(row.request_id))
        .with("subject", row.subject)
        .with("network", row.network)
        .with("provider", row.provider);
    entry.outcome = Some(row.outcome);
    entry
}
