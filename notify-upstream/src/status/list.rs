//! Lists of notifications: filters, cursors and pages.
//!
//! The statement selects what the caller may read, and the recipient; other filters are applied here.
//! A page reads at most [`MAX_SCANNED_ROWS`] rows, so that each takes a bounded time: it may have fewer
//! notifications than asked for although there are more, which its cursor continues with.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::clock::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::address::{Recipient, recipient_key};
use crate::notification::{Channel, NotificationId};
use crate::principal::Principal;
use crate::status::view::{NotificationStatus, StatusView};
use crate::store::{ListQuery, NotificationSnapshot, Store, StoreError};

/// Maximum number of notifications on a page.
pub(crate) const MAX_PAGE_SIZE: usize = 200;
/// Number of notifications on a page by default.
pub(crate) const DEFAULT_PAGE_SIZE: usize = 50;
/// Number of rows that are read for a page if a filter may leave some out.
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
    /// Compares the recipient itself as well, because its key in the index is shortened.
    fn accepts(&self, NotificationSnapshot { record, .. }: &NotificationSnapshot) -> bool {
        let (template, channel) = (self.template.as_ref(), self.channel);
        let is_recipient = |wanted: &String| {
            let stored = serde_json::from_str(&record.recipient);
            stored.is_ok_and(|stored: Recipient| stored.key().eq_ignore_ascii_case(wanted))
        };
        template.is_none_or(|template| *template == record.template)
            && channel.is_none_or(|channel| channel == record.lane.channel)
            && self.recipient.as_ref().is_none_or(is_recipient)
    }
}

// === impl ListAccess ===

impl ListAccess {
    fn label(&self) -> &str {
        match self {
            Self::All => "all",
            Self::Own(principal) => &principal.creator,
        }
    }
}

// === impl ListReader ===

impl ListReader<'_> {
    /// Returns the query of the rows of the list that the caller may read.
    fn query(&self, after: Option<NotificationId>, limit: usize) -> ListQuery {
        let from = NotificationId::floor(self.filter.from.unwrap_or(Timestamp(0)));
        let end = self.filter.to.map(NotificationId::floor);
        let end = end.unwrap_or(NotificationId(Uuid::max()));
        let recipient = self.filter.recipient.as_deref().map(recipient_key);
        let (creator, actor) = match &self.access {
            ListAccess::All => (None, None),
            ListAccess::Own(Principal { creator, actor }) => (Some(creator), actor.clone()),
        };
        ListQuery {
            creator: creator.map(ToString::to_string),
            recipient,
            addressee: actor.filter(|it| recipient.is_none_or(|key| key == recipient_key(it))),
            request: None,
            from,
            before: after.map_or(end, |after| after.min(end)),
            limit,
        }
    }

    /// Reads the page behind `after`, or the first one: one statement for its records, and one for
    /// their history.
    pub(crate) async fn page(
        &self,
        after: Option<NotificationId>,
        limit: usize,
        view: impl Fn(&NotificationSnapshot) -> StatusView,
    ) -> Result<ListPage, StoreError> {
        let filter = &self.filter;
        let is_selective =
            filter.status.is_some() || filter.template.is_some() || filter.channel.is_some();
        let rows = if is_selective {
            MAX_SCANNED_ROWS
        } else {
            limit + 1
        };
        let mut records = self.store.list(&self.query(after, rows)).await?;
        let last = records.last().map(|record| record.id);
        let last = last.filter(|_| records.len() == rows);
        records.retain(|record| filter.accepts(record));
        if filter.status.is_none() {
            records.truncate(limit + 1);
        }
        let mut found = Vec::new();
        for snapshot in self.store.with_history(records).await? {
            let view = view(&snapshot);
            if found.len() <= limit && filter.status.is_none_or(|status| status == view.status) {
                found.push((view.without_events(), snapshot));
            }
        }
        let more = found.get(limit).and(found.get(limit - 1));
        let next = more.map(|(_, row)| row.id).or(last);
        found.truncate(limit);
        Ok(ListPage {
            notifications: found,
            next,
        })
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
        let mut filter = self.filter.clone();
        if let Some(recipient) = &mut filter.recipient {
            recipient.make_ascii_lowercase();
        }
        // `Debug` quotes the texts, so that different filters differ.
        let filter = format!("1 {id} {:?} {filter:?}", self.access.label());
        let digest = Sha256::digest(filter);
        std::array::from_fn(|index| digest[index])
    }
}
