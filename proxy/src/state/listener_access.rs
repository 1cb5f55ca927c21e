//! The access lists of the listeners, which a reload changes.

use std::net::{IpAddr, SocketAddr};

use crate::config::{AccessList, ListenerConfig};

/// The access lists of the listeners by their addresses in the configuration. Listeners without a
/// list have no entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerAccess(Vec<(SocketAddr, AccessList)>);

impl ListenerAccess {
    /// Collects the lists of a configuration. A listener that it no longer contains serves until
    /// the restart, and keeps its list of `previous`.
    pub(crate) fn new(listen: &[ListenerConfig], previous: Option<&Self>) -> Self {
        let kept = previous.into_iter().flat_map(|previous| &previous.0);
        let kept = kept.filter(|(address, _)| listen.iter().all(|it| it.address != *address));
        let lists = listen
            .iter()
            .filter_map(|it| Some((it.address, it.access.clone()?)));
        Self(lists.chain(kept.cloned()).collect())
    }

    pub(crate) fn accepts(&self, listener: SocketAddr, peer: IpAddr) -> bool {
        let mut lists = self.0.iter();
        lists.all(|(address, list)| *address != listener || list.accepts(Some(peer)))
    }
}
