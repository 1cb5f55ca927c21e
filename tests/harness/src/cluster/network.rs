//! Packets to a port that are dropped without an answer, as by a broken switch. Needs nftables in a
//! network namespace of its own, so that nothing else is affected.

use tokio::process::Command;

/// The rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network;

impl Network {
    /// Prepares the rules. Returns `None` if this namespace has other interfaces than the loopback, or
    /// without permission.
    pub(super) async fn prepare() -> Option<Self> {
        let interfaces = std::fs::read_to_string("/proc/net/dev").ok()?;
        // Two lines of headings.
        let mut names = interfaces.lines().skip(2).map(str::trim_start);
        if !names.all(|name| name.starts_with("lo:")) {
            return None;
        }
        let rules = "add table inet postern; add chain inet postern packets { type filter hook input priority 0; }";
        nft(rules).await.then_some(Self)
    }

    /// Drops packets from and to a port.
    pub(super) async fn partition(self, port: u16) {
        let rules = format!(
            "add rule inet postern packets tcp dport {port} drop; add rule inet postern packets tcp sport {port} drop"
        );
        assert!(nft(&rules).await, "nft: {rules}");
    }

    /// Drops no more packets.
    pub(super) async fn restore(self) {
        assert!(nft("flush chain inet postern packets").await, "nft flush");
    }
}

async fn nft(rules: &str) -> bool {
    let output = Command::new("/usr/sbin/nft").arg(rules).output().await;
    output.is_ok_and(|output| output.status.success())
}
