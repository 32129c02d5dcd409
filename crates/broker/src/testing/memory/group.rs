//! One group of the memory broker: which member owns which partition of a topic.
//!
//! Joins, leaves and the wishes of a test come in; [`Change`]s go out, into a queue for each member. Invariants: a
//! partition has at most one owner, and gets another only after the owner gave it up, left, or lost it. The wanted
//! owner and the present owner are kept apart, so a hand-over can be redirected while it is under way.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use crate::contract::Change;
use crate::testing::waiters::Waiters;

/// The members by id; ids rise in the order of joining.
#[derive(Debug, Default)]
pub(super) struct Group {
    by_hand: bool,
    members: BTreeMap<u64, Member>,
    shares: Vec<Share>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) instance: u128,
    pub(super) node: String,
    /// False once the member's session expired while its process was away; the member may come back.
    present: bool,
    /// The member left while its process could not be heard: it is removed when its session ends, or when the process
    /// is heard again.
    gone: bool,
    /// Partitions that the member gave up while its process could not be heard. They are given up when it is heard
    /// again, as a real client does.
    unheard: Vec<u32>,
    /// Changes that the member has not asked for yet.
    pub(super) changes: VecDeque<Change>,
    pub(super) waiters: Waiters,
}

#[derive(Debug, Clone, Copy, Default)]
struct Share {
    owner: Option<u64>,
    wanted: Option<u64>,
    revoking: bool,
}

impl Group {
    pub(super) fn new(by_hand: bool) -> Group {
        Group { by_hand, ..Group::default() }
    }

    pub(super) fn take_in_hand(&mut self) {
        self.by_hand = true;
    }

    /// The topic has this many partitions now; 0 means that it was deleted, which takes its partitions from their
    /// owners.
    pub(super) fn resize(&mut self, partitions: u32, to_wake: &mut Vec<Waker>) {
        for partition in partitions..self.shares.len() as u32 {
            self.take(partition, to_wake);
        }
        self.shares.resize(partitions as usize, Share::default());
        self.balance(to_wake);
    }

    pub(super) fn join(&mut self, id: u64, instance: u128, node: &str, to_wake: &mut Vec<Waker>) {
        let member = Member {
            instance,
            node: node.to_owned(),
            present: true,
            gone: false,
            unheard: Vec::new(),
            changes: VecDeque::new(),
            waiters: Waiters::default(),
        };
        self.members.insert(id, member);
        self.balance(to_wake);
    }

    /// Removes a member; it gets no further changes.
    pub(super) fn leave(&mut self, id: u64, to_wake: &mut Vec<Waker>) {
        if let Some(mut member) = self.members.remove(&id) {
            member.waiters.take_all(to_wake);
            for share in &mut self.shares {
                if share.owner == Some(id) {
                    (share.owner, share.revoking) = (None, false);
                }
                if share.wanted == Some(id) {
                    share.wanted = None;
                }
            }
            self.balance(to_wake);
        }
    }

    /// Marks a member that left but cannot tell the group so.
    pub(super) fn abandon(&mut self, id: u64) {
        if let Some(member) = self.members.get_mut(&id) {
            member.gone = true;
        }
    }

    fn bury_abandoned(&mut self, instances: &[u128], to_wake: &mut Vec<Waker>) {
        let gone: Vec<u64> = self
            .members
            .iter()
            .filter(|(_, member)| member.gone && instances.contains(&member.instance))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.leave(id, to_wake);
        }
    }

    pub(super) fn gave_up(&mut self, id: u64, partition: u32, to_wake: &mut Vec<Waker>) {
        if let Some(share) = self.shares.get_mut(partition as usize)
            && share.owner == Some(id)
            && share.revoking
        {
            (share.owner, share.revoking) = (None, false);
            self.balance(to_wake);
        }
    }

    /// Like [`Group::gave_up`], for a member whose process cannot be heard now.
    pub(super) fn gave_up_unheard(&mut self, id: u64, partition: u32) {
        if let Some(member) = self.members.get_mut(&id) {
            member.unheard.push(partition);
        }
    }

    fn hear(&mut self, instances: &[u128], to_wake: &mut Vec<Waker>) {
        let mut heard = Vec::new();
        for (id, member) in &mut self.members {
            if instances.contains(&member.instance) {
                heard.extend(member.unheard.drain(..).map(|partition| (*id, partition)));
            }
        }
        for (id, partition) in heard {
            self.gave_up(id, partition, to_wake);
        }
    }

    pub(super) fn confirm(&self, id: u64, partition: u32) -> bool {
        self.shares.get(partition as usize).is_some_and(|share| share.owner == Some(id) && !share.revoking)
    }

    pub(super) fn member(&mut self, id: u64) -> Option<&mut Member> {
        self.members.get_mut(&id)
    }

    pub(super) fn owner(&self, partition: u32) -> Option<&str> {
        let id = self.shares.get(partition as usize)?.owner?;
        self.members.get(&id).map(|member| member.node.as_str())
    }

    /// Gives the partition to the newest member of that node, once its owner has given it up. False if the node has no
    /// member.
    pub(super) fn assign(&mut self, partition: u32, node: &str, to_wake: &mut Vec<Waker>) -> bool {
        self.by_hand = true;
        let newest = self
            .members
            .iter()
            .rev()
            .find(|(_, member)| member.present && member.node == node)
            .map(|(id, _)| *id);
        if newest.is_some() {
            self.shares[partition as usize].wanted = newest;
            self.hand_over(to_wake);
        }
        newest.is_some()
    }

    pub(super) fn revoke(&mut self, partition: u32, to_wake: &mut Vec<Waker>) {
        self.by_hand = true;
        self.shares[partition as usize].wanted = None;
        self.hand_over(to_wake);
    }

    pub(super) fn lose(&mut self, partition: u32, to_wake: &mut Vec<Waker>) {
        self.take(partition, to_wake);
        self.balance(to_wake);
    }

    /// The sessions of these processes ended: all their partitions are taken. With `away`, their members leave the
    /// group, too.
    pub(super) fn expire(&mut self, instances: &[u128], away: bool, to_wake: &mut Vec<Waker>) {
        self.bury_abandoned(instances, to_wake);
        let expired: Vec<u64> = self
            .members
            .iter()
            .filter(|(_, member)| instances.contains(&member.instance))
            .map(|(id, _)| *id)
            .collect();
        for partition in 0..self.shares.len() as u32 {
            let share = self.shares[partition as usize];
            if share.owner.is_some_and(|owner| expired.contains(&owner)) {
                self.take(partition, to_wake);
            }
            if away && share.wanted.is_some_and(|wanted| expired.contains(&wanted)) {
                self.shares[partition as usize].wanted = None;
            }
        }
        for id in expired {
            self.members.get_mut(&id).expect("an id of this group's members").present = !away;
        }
        self.balance(to_wake);
    }

    /// Members of these processes are in the group again, and get the changes that happened meanwhile.
    pub(super) fn come_back(&mut self, instances: &[u128], to_wake: &mut Vec<Waker>) {
        self.bury_abandoned(instances, to_wake);
        self.hear(instances, to_wake);
        for member in self.members.values_mut() {
            if instances.contains(&member.instance) {
                member.present = true;
                member.waiters.take_all(to_wake);
            }
        }
        self.balance(to_wake);
    }

    /// Wakes every member, so that each looks at its own state again.
    pub(super) fn wake_all(&mut self, to_wake: &mut Vec<Waker>) {
        for member in self.members.values_mut() {
            member.waiters.take_all(to_wake);
        }
    }

    fn take(&mut self, partition: u32, to_wake: &mut Vec<Waker>) {
        let share = &mut self.shares[partition as usize];
        if let Some(owner) = share.owner.take() {
            share.revoking = false;
            share.wanted = share.wanted.filter(|wanted| *wanted != owner);
            self.tell(owner, Change::Lost(partition), to_wake);
        }
    }

    fn balance(&mut self, to_wake: &mut Vec<Waker>) {
        if !self.by_hand {
            self.want_fair_shares();
        }
        self.hand_over(to_wake);
    }

    /// Gives every member equally many partitions, give or take one. An owner keeps a partition if that is fair.
    fn want_fair_shares(&mut self) {
        let ids: Vec<u64> =
            self.members.iter().filter(|(_, member)| member.present).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            self.shares.iter_mut().for_each(|share| share.wanted = None);
            return;
        }
        let fair = self.shares.len() / ids.len();
        let mut extra = self.shares.len() % ids.len();
        let mut counts: BTreeMap<u64, usize> = ids.iter().map(|id| (*id, 0)).collect();
        let mut take_one = |id: u64| {
            let Some(count) = counts.get_mut(&id) else {
                return false;
            };
            let is_extra = *count == fair;
            if *count > fair || (is_extra && extra == 0) {
                return false;
            }
            *count += 1;
            extra -= usize::from(is_extra);
            true
        };
        let mut homeless = Vec::new();
        for (partition, share) in self.shares.iter_mut().enumerate() {
            share.wanted = share.owner.filter(|owner| take_one(*owner));
            if share.wanted.is_none() {
                homeless.push(partition);
            }
        }
        let mut candidates = ids.iter().cycle();
        for partition in homeless {
            self.shares[partition].wanted =
                candidates.by_ref().take(ids.len()).find(|id| take_one(**id)).copied();
        }
    }

    fn hand_over(&mut self, to_wake: &mut Vec<Waker>) {
        for partition in 0..self.shares.len() as u32 {
            let share = &mut self.shares[partition as usize];
            match (share.owner, share.wanted) {
                (None, Some(wanted)) => {
                    share.owner = Some(wanted);
                    self.tell(wanted, Change::Assigned(partition), to_wake);
                }
                (Some(owner), wanted) if wanted != Some(owner) && !share.revoking => {
                    share.revoking = true;
                    self.tell(owner, Change::Revoked(partition), to_wake);
                }
                _ => {}
            }
        }
    }

    fn tell(&mut self, id: u64, change: Change, to_wake: &mut Vec<Waker>) {
        if let Some(member) = self.members.get_mut(&id) {
            member.changes.push_back(change);
            member.waiters.take_all(to_wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(partitions: u32, members: &[u64]) -> Group {
        let mut group = Group::new(false);
        group.resize(partitions, &mut Vec::new());
        for id in members {
            group.join(*id, u128::from(*id), &id.to_string(), &mut Vec::new());
        }
        group
    }

    fn drain(group: &mut Group, id: u64) -> Vec<Change> {
        group.member(id).expect("a member").changes.drain(..).collect()
    }

    /// Carries out every hand-over, and returns how many partitions each member then has.
    fn settle(group: &mut Group, ids: &[u64]) -> Vec<usize> {
        loop {
            let mut moved = false;
            for id in ids {
                for change in drain(group, *id) {
                    if let Change::Revoked(partition) = change {
                        group.gave_up(*id, partition, &mut Vec::new());
                        moved = true;
                    }
                }
            }
            if !moved {
                break;
            }
        }
        ids.iter()
            .map(|id| (0..group.shares.len() as u32).filter(|p| group.confirm(*id, *p)).count())
            .collect()
    }

    #[test]
    fn shares_are_fair_for_every_small_group() {
        for partitions in 1..=12 {
            for members in 1..=5u64 {
                let ids: Vec<u64> = (1..=members).collect();
                let mut group = group(partitions, &ids);
                let counts = settle(&mut group, &ids);
                let (least, most) = (counts.iter().min(), counts.iter().max());
                assert_eq!(counts.iter().sum::<usize>(), partitions as usize, "{counts:?}");
                assert!(most.expect("one") - least.expect("one") <= 1, "{counts:?}");
            }
        }
    }

    #[test]
    fn a_partition_goes_on_only_after_it_was_given_up() {
        let mut group = group(2, &[1]);
        assert_eq!(drain(&mut group, 1), [Change::Assigned(0), Change::Assigned(1)]);
        group.join(2, 2, "2", &mut Vec::new());
        assert_eq!(drain(&mut group, 1), [Change::Revoked(1)]);
        assert_eq!(drain(&mut group, 2), []);
        assert!(!group.confirm(1, 1) && !group.confirm(2, 1));
        group.gave_up(1, 1, &mut Vec::new());
        assert_eq!(drain(&mut group, 2), [Change::Assigned(1)]);
    }

    #[test]
    fn a_hand_over_whose_target_leaves_goes_back() {
        let mut group = group(2, &[1]);
        group.join(2, 2, "2", &mut Vec::new());
        group.leave(2, &mut Vec::new());
        drain(&mut group, 1);
        group.gave_up(1, 1, &mut Vec::new());
        assert_eq!(drain(&mut group, 1), [Change::Assigned(1)]);
    }

    #[test]
    fn a_member_away_hears_of_its_loss_when_it_is_back() {
        let mut group = group(2, &[1, 2]);
        assert_eq!(settle(&mut group, &[1, 2]), [1, 1]);
        group.expire(&[1], true, &mut Vec::new());
        assert_eq!(settle(&mut group, &[2]), [2]);
        group.come_back(&[1], &mut Vec::new());
        assert_eq!(drain(&mut group, 1), [Change::Lost(0)]);
        assert_eq!(settle(&mut group, &[1, 2]), [1, 1]);
    }
}
