//! SRV records (RFC 2782): priorities and weights of the hosts of a service.

use std::net::IpAddr;

use crate::upstream::discovery::{Target, inet};

/// Maximum weight of an address. The weights of the records of one priority are multiplied so that
/// the greatest is about this: a record with weight 0 beside others then gets the "very small
/// chance" that the RFC asks for.
const MAX_WEIGHT: u64 = 1000;

/// An SRV record with the addresses of its target host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SrvRecord {
    pub(super) priority: u16,
    pub(super) weight: u16,
    pub(super) port: u16,
    pub(super) hosts: Vec<IpAddr>,
}

/// Returns the addresses of a service. The weight of a record is divided among the addresses of its
/// host.
pub(super) fn targets(records: &[SrvRecord]) -> Vec<Target> {
    let weight_of = |record: &SrvRecord| {
        let same_priority = records
            .iter()
            .filter(|other| other.priority == record.priority && !other.hosts.is_empty());
        let max = same_priority.map(|other| other.weight).max().unwrap_or(0);
        let hosts = record.hosts.len().max(1) as u64;
        let (weight, max) = (u64::from(record.weight), u64::from(max));
        let share = match max {
            0 => MAX_WEIGHT,
            // A whole factor, which keeps the ratios.
            1..=MAX_WEIGHT => weight * (MAX_WEIGHT / max),
            _ => weight * MAX_WEIGHT / max,
        };
        u32::try_from(share / hosts).unwrap_or(u32::MAX).max(1)
    };
    let mut targets: Vec<Target> = records
        .iter()
        .flat_map(|record| {
            let weight = weight_of(record);
            record.hosts.iter().map(move |host| Target {
                address: inet(*host, record.port),
                priority: record.priority,
                weight,
            })
        })
        .collect();
    // Of records with the same host and port, the first in the order of the RFC counts.
    targets.sort_by_key(|target| (target.priority, target.address.clone()));
    let mut known = Vec::with_capacity(targets.len());
    targets.retain(|target| {
        let is_new = !known.contains(&target.address);
        known.push(target.address.clone());
        is_new
    });
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(priority: u16, weight: u16, hosts: &[u8]) -> SrvRecord {
        SrvRecord {
            priority,
            weight,
            port: 80,
            hosts: hosts
                .iter()
                .map(|host| IpAddr::from([127, 0, 0, *host]))
                .collect(),
        }
    }

    fn found(records: &[SrvRecord]) -> Vec<(u8, u16, u32)> {
        let last = |address: Option<&std::net::SocketAddr>| match address.map(|it| it.ip()) {
            Some(IpAddr::V4(ip)) => ip.octets()[3],
            Some(IpAddr::V6(_)) | None => 0,
        };
        targets(records)
            .iter()
            .map(|target| {
                (
                    last(target.address.as_inet()),
                    target.priority,
                    target.weight,
                )
            })
            .collect()
    }

    #[test]
    fn weights_are_relative_within_a_priority() {
        assert_eq!(
            found(&[
                record(20, 5, &[4]),
                record(10, 60, &[1]),
                record(10, 20, &[2])
            ]),
            [(1, 10, 960), (2, 10, 320), (4, 20, 1000)]
        );
    }

    #[test]
    fn great_weights_are_scaled_down() {
        assert_eq!(
            found(&[record(0, 60_000, &[1]), record(0, 30_000, &[2])]),
            [(1, 0, 1000), (2, 0, 500)]
        );
    }

    #[test]
    fn zero_weight_gets_a_very_small_share() {
        assert_eq!(
            found(&[record(0, 0, &[1]), record(0, 1, &[2])]),
            [(1, 0, 1), (2, 0, 1000)]
        );
        assert_eq!(
            found(&[record(0, 0, &[1]), record(0, 0, &[2])]),
            [(1, 0, 1000), (2, 0, 1000)],
            "all are 0: equal shares"
        );
    }

    #[test]
    fn weight_is_divided_among_the_addresses_of_a_host() {
        assert_eq!(
            found(&[record(0, 10, &[1, 2]), record(0, 10, &[3])]),
            [(1, 0, 500), (2, 0, 500), (3, 0, 1000)]
        );
    }

    #[test]
    fn repeated_host_counts_with_its_lowest_priority() {
        assert_eq!(
            found(&[record(20, 1, &[1]), record(10, 1, &[1]), record(10, 9, &[])]),
            [(1, 10, 1000)]
        );
    }
}
