//! Lists of notifications: filters, cursors and pages.
//!
//! A list is read in chunks in the order of an index, and filtered here. A page reads at most
//! [`MAX_SCANNED_ROWS`] rows, so that each takes a bounded time: it may have fewer notifications
//! than asked for although there are more, which its cursor continues with.

use std::collections::{BTreeMap, HashMap};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_common::clock::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::address::{Recipient, recipient_key};
use crate::notification::{Channel, NotificationId};
use crate::principal::Principal;
use crate::status::view::{NotificationStatus, StatusView};
use crate::store::{ListQuery, ListScope, ListedRow, NotificationSnapshot, Store, StoreError};

/// Maximum number of notifications on a page.
pub(crate) const MAX_PAGE_SIZE: usize = 200;
/// Number of notifications on a page by default.
pub(crate) const DEFAULT_PAGE_SIZE: usize = 50;
/// Number of rows that are read at a time if a filter may leave some out.
const CHUNK_ROWS: usize = 200;
/// Maximum number of rows that are read for a page.
const MAX_SCANNED_ROWS: usize = 1000;
/// Bytes of a cursor's digest.
const CURSOR_DIGEST_BYTES: usize = 8;

/// The notifications that a caller may list.
#[derive(Clone, Debug)]
pub(crate) enum ListAccess {
    /// All: the caller is an administrator, a reader or an operator.
    All,
    /// Those that the caller created or that are addressed to it.
    Own(Principal),
}

/// The filter of a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListFilter {
    /// Address or actor id, compared without case.
    pub(crate) recipient: Option<String>,
    pub(crate) status: Option<NotificationStatus>,
    pub(crate) template: Option<String>,
    pub(crate) channel: Option<Channel>,
    /// Accepted at or after this time.
    pub(crate) from: Option<Timestamp>,
    /// Accepted before this time.
    pub(crate) to: Option<Timestamp>,
}

/// A page of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListPage {
    /// The notifications, newest first, without their events.
    pub(crate) notifications: Vec<(StatusView, NotificationSnapshot)>,
    /// The last id that was considered; `None` at the end of the list.
    pub(crate) next: Option<NotificationId>,
}

/// Reads pages of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListReader<'a> {
    pub(crate) store: &'a Store,
    pub(crate) access: ListAccess,
    pub(crate) filter: ListFilter,
}

// === impl ListFilter ===

impl ListFilter {
    /// Returns whether rows of the index may be left out.
    fn is_selective(&self) -> bool {
        self.status.is_some() || self.template.is_some() || self.channel.is_some()
    }

    fn accepts_row(&self, row: &ListedRow) -> bool {
        self.template
            .as_ref()
            .is_none_or(|template| *template == row.template)
            && self
                .channel
                .is_none_or(|channel| channel == row.lane.channel)
    }

    /// Compares the recipient itself, because its key in the index is shortened.
    fn accepts_recipient(&self, snapshot: &NotificationSnapshot) -> bool {
        self.recipient.as_ref().is_none_or(|wanted| {
            serde_json::from_str(&snapshot.record.recipient)
                .is_ok_and(|stored: Recipient| stored.key().eq_ignore_ascii_case(wanted))
        })
    }
}

// === impl ListAccess ===

impl ListAccess {
    fn accepts(&self, row: &ListedRow) -> bool {
        match self {
            Self::All => true,
            Self::Own(principal) => principal.may_read(&row.creator, row.addressee.as_deref()),
        }
    }

    fn label(&self) -> &str {
        match self {
            Self::All => "all",
            Self::Own(principal) => &principal.creator,
        }
    }
}

// === impl ListReader ===

impl ListReader<'_> {
    /// Returns the parts of the index that contain the list.
    fn scopes(&self) -> Vec<ListScope> {
        if let Some(recipient) = &self.filter.recipient {
            return vec![ListScope::Recipient(recipient_key(recipient))];
        }
        match &self.access {
            ListAccess::All => vec![ListScope::All],
            ListAccess::Own(principal) => {
                let addressed = principal
                    .actor
                    .iter()
                    .map(|actor| ListScope::Recipient(recipient_key(actor)));
                let created = ListScope::Creator(principal.creator.to_string());
                std::iter::once(created).chain(addressed).collect()
            }
        }
    }

    /// Reads the page behind `after`, or the first one.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn page(
        &self,
        after: Option<NotificationId>,
        limit: usize,
        view: impl Fn(&NotificationSnapshot) -> StatusView,
    ) -> Result<ListPage, StoreError> {
        let scopes = self.scopes();
        let rows_per_chunk = if self.filter.is_selective() || scopes.len() > 1 {
            CHUNK_ROWS
        } else {
            limit + 1
        };
        let from = NotificationId::floor(self.filter.from.unwrap_or(Timestamp(0)));
        let end = self.filter.to.map_or(NotificationId(Uuid::max()), |to| {
            NotificationId::floor(Timestamp(to.0.max(0)))
        });
        let mut before = after.map_or(end, |after| after.min(end));
        let (mut found, mut scanned) = (Vec::new(), 0);
        loop {
            let query = |scope| ListQuery {
                scope,
                from,
                before,
                limit: i64::try_from(rows_per_chunk).unwrap_or(i64::MAX),
            };
            let chunk = self.chunk(scopes.iter().cloned().map(query)).await?;
            let chunk: Vec<ListedRow> = chunk.into_values().rev().take(rows_per_chunk).collect();
            let is_last = chunk.len() < rows_per_chunk;
            scanned += chunk.len();
            let mut snapshots = self.snapshots(&chunk).await?;
            for (index, row) in chunk.iter().enumerate() {
                before = row.id;
                let Some(snapshot) = snapshots.remove(&row.id) else {
                    continue;
                };
                let view = view(&snapshot);
                if self
                    .filter
                    .status
                    .is_none_or(|status| status == view.status)
                {
                    found.push((view.without_events(), snapshot));
                }
                if found.len() == limit {
                    let is_end = is_last && index + 1 == chunk.len();
                    return Ok(ListPage {
                        notifications: found,
                        next: (!is_end).then_some(before),
                    });
                }
            }
            if is_last || scanned >= MAX_SCANNED_ROWS {
                return Ok(ListPage {
                    notifications: found,
                    next: (!is_last).then_some(before),
                });
            }
        }
    }

    /// Returns the next rows of all scopes, by id. The newest of their union are the newest of each.
    async fn chunk(
        &self,
        queries: impl Iterator<Item = ListQuery>,
    ) -> Result<BTreeMap<NotificationId, ListedRow>, StoreError> {
        let mut rows = BTreeMap::new();
        for query in queries {
            let part = self.store.list(&query).await?;
            rows.extend(part.into_iter().map(|row| (row.id, row)));
        }
        Ok(rows)
    }

    /// Reads those notifications of a chunk that the caller may read and the filter accepts.
    async fn snapshots(
        &self,
        chunk: &[ListedRow],
    ) -> Result<HashMap<NotificationId, NotificationSnapshot>, StoreError> {
        let is_listed = |row: &&ListedRow| self.access.accepts(row) && self.filter.accepts_row(row);
        let ids: Vec<NotificationId> = chunk.iter().filter(is_listed).map(|row| row.id).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let snapshots = self.store.read(&ids).await?;
        Ok(snapshots
            .into_iter()
            .filter(|snapshot| self.filter.accepts_recipient(snapshot))
            .map(|snapshot| (snapshot.id, snapshot))
            .collect())
    }

    /// Encodes a cursor. It contains the id and a digest of id, caller and filter, so that a cursor
    /// of another list or with another id is refused. It grants nothing: the access is checked for
    /// each page.
    pub(crate) fn cursor(&self, id: NotificationId) -> String {
        let digest = self.cursor_digest(id);
        URL_SAFE_NO_PAD.encode([id.0.as_bytes().as_slice(), &digest].concat())
    }

    /// Decodes a cursor. Returns `None` unless [`ListReader::cursor`] of this list made it.
    pub(crate) fn parse_cursor(&self, text: &str) -> Option<NotificationId> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (id, digest) = bytes.split_first_chunk::<16>()?;
        let id = NotificationId(Uuid::from_bytes(*id));
        (digest == self.cursor_digest(id)).then_some(id)
    }

    fn cursor_digest(&self, id: NotificationId) -> [u8; CURSOR_DIGEST_BYTES] {
        let ListFilter {
            recipient,
            status,
            template,
            channel,
            from,
            to,
        } = &self.filter;
        let recipient = recipient.as_ref().map(|text| text.to_ascii_lowercase());
        let label = self.access.label();
        // `Debug` quotes the texts, so that different filters differ.
        let filter = format!(
            "1 {id} {label:?} {recipient:?} {status:?} {template:?} {channel:?} {from:?} {to:?}"
        );
        let digest = Sha256::digest(filter);
        std::array::from_fn(|index| digest[index])
    }
}
