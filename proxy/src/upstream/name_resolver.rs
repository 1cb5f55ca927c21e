//! Look-ups of names by the resolver of the operating system, which knows `/etc/hosts`, the name
//! servers and the other sources of `nsswitch.conf`.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use pingora::protocols::l4::socket::SocketAddr;
use tokio::net::lookup_host;

use crate::config::UpstreamAddress;

/// Time for a look-up. The operating system may take longer to give up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct NameResolver {
    /// The last answers by `host:port`, for pools that a reload creates.
    last_answers: Mutex<HashMap<String, Vec<SocketAddr>>>,
}

impl NameResolver {
    /// Looks an address of the configuration up, which is a name.
    ///
    /// # Errors
    /// Why the name has no addresses.
    pub(super) async fn look_up(
        &self,
        address: &UpstreamAddress,
    ) -> Result<Vec<SocketAddr>, String> {
        let look_up = lookup_host((address.host.as_str(), address.port));
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, look_up).await;
        let found = found.map_err(|_| "no answer in time".to_owned())?;
        let found = found.map_err(|error| error.to_string())?;
        let mut found: Vec<SocketAddr> = found.map(SocketAddr::Inet).collect();
        // Name servers rotate their answers.
        found.sort_unstable();
        let mut last = self.last_answers.lock();
        last.insert(address.to_string(), found.clone());
        Ok(found)
    }

    pub(super) fn last_answer(&self, address: &UpstreamAddress) -> Vec<SocketAddr> {
        let last = self.last_answers.lock();
        last.get(&address.to_string()).cloned().unwrap_or_default()
    }
}
