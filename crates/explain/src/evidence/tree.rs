//! Where time went, as a tree of names: a subject, its call, whom it waited for, in what call
//! or work function, and so on.

use super::groups::GroupId;
use super::subject::Key;
use crate::moment::{Place, Sym};
use vmeter_trace::hash::FastMap;

/// Most nodes.
const MAX_NODES: usize = 1 << 17;

/// What a node stands for, within its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frame {
    /// The whole life of the threads of a name.
    Life(GroupId),
    /// The whole life of one of them, by its number: those of one name may live differently.
    Thread(GroupId, i32),
    /// All requests of a kind.
    Request(Key),
    /// In a system call, or in an ioctl's request.
    Call(Sym),
    /// In a work function.
    Work(Sym),
    /// Asleep until one of these woke it.
    Waker(GroupId),
    /// One of these had the CPU.
    Has(GroupId),
    /// One of these had the CPU, and a higher priority.
    Preempts(GroupId),
    /// On a CPU.
    Runs,
    /// In the guest.
    Guest,
    /// Ready, without a CPU.
    NoCpu,
    /// Within [`Frame::NoCpu`]: the CPU had nothing to do meanwhile.
    Idle,
    /// Asleep until a timer fired.
    Timer,
    /// Asleep until a device's interrupt.
    Irq(Sym),
    /// Asleep until an interrupt that is not recorded.
    Interrupt,
    /// Asleep until a disk, or a lock in the kernel; in what call and until whom is not recorded.
    Deep,
    /// Stopped by a signal or a tracer, until one of these let it go on.
    Stopped(GroupId),
    /// Asleep; until what is not recorded.
    Asleep,
    /// Pages that were touched and not there; has no time of its own.
    Faults,
    /// Not recorded.
    Unknown,
}

impl Frame {
    /// The name of those whose whole life it is.
    pub fn life(self) -> Option<GroupId> {
        match self {
            Frame::Life(group) | Frame::Thread(group, _) => Some(group),
            _ => None,
        }
    }
}

/// A node.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// What it stands for.
    pub frame: Frame,
    /// Index of the node it is within; its own for a root.
    pub parent: u32,
    /// Ticks of the node itself; after [`Tree::sum`] of all within it as well.
    pub ticks: u64,
    /// Stretches, or calls that ended.
    pub count: u64,
    /// Sum of the squares of the stretches' ticks: how far the sum may be off.
    pub squares: f64,
    /// The longest stretch.
    pub worst: Option<(u64, Place)>,
}

/// The tree.
#[derive(Debug, Default, Clone)]
pub struct Tree {
    nodes: Vec<Node>,
    index: FastMap<(u32, Frame), u32>,
    /// By node, the one within it that was found last: the next is mostly the same.
    latest: Vec<u32>,
    children: Vec<Vec<u32>>,
}

/// The parent of roots.
const NONE: u32 = u32::MAX;

impl Tree {
    /// A root.
    pub fn root(&mut self, frame: Frame) -> Option<u32> {
        self.find(NONE, frame)
    }

    /// The root of that frame, if there is one.
    pub fn root_of(&self, frame: Frame) -> Option<u32> {
        self.index.get(&(NONE, frame)).copied()
    }

    /// All roots.
    pub fn roots(&self) -> impl Iterator<Item = (u32, &Node)> {
        (0..).zip(&self.nodes).filter(|(at, node)| node.parent == *at)
    }

    #[inline]
    fn find(&mut self, parent: u32, frame: Frame) -> Option<u32> {
        let latest = self.latest.get(parent as usize).copied();
        let same = |node: &Node| node.parent == parent && node.frame == frame;
        if let Some(at) = latest.filter(|at| self.nodes.get(*at as usize).is_some_and(same)) {
            return Some(at);
        }
        let found = self.look_up(parent, frame);
        if let (Some(latest), Some(at)) = (self.latest.get_mut(parent as usize), found) {
            *latest = at;
        }
        found
    }

    fn look_up(&mut self, parent: u32, frame: Frame) -> Option<u32> {
        if let Some(&at) = self.index.get(&(parent, frame)) {
            return Some(at);
        }
        match self.nodes.len() < MAX_NODES {
            true => self.insert(parent, frame),
            false => None,
        }
    }

    /// As [`Tree::look_up`], when all is there: the sums need room of their own.
    fn insert(&mut self, parent: u32, frame: Frame) -> Option<u32> {
        if let Some(&at) = self.index.get(&(parent, frame)) {
            return Some(at);
        }
        if self.nodes.len() >= 2 * MAX_NODES {
            return None;
        }
        let at = self.nodes.len() as u32;
        let parent_or_own = if parent == NONE { at } else { parent };
        let node =
            Node { frame, parent: parent_or_own, ticks: 0, count: 0, squares: 0.0, worst: None };
        self.nodes.push(node);
        self.latest.push(at);
        self.index.insert((parent, frame), at);
        Some(at)
    }

    /// The node of a frame within another; that one itself if there is no room.
    pub fn child(&mut self, parent: u32, frame: Frame) -> u32 {
        self.find(parent, frame).unwrap_or(parent)
    }

    /// Adds time.
    pub fn add(&mut self, at: u32, ticks: u64, place: Place) {
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.ticks = node.ticks.saturating_add(ticks);
            node.squares += ticks as f64 * ticks as f64;
            node.count += 1;
            if node.worst.is_none_or(|(most, _)| most < ticks) {
                node.worst = Some((ticks, place));
            }
        }
    }

    /// Counts one.
    pub fn count(&mut self, at: u32) {
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.count += 1;
        }
    }

    /// Counts some.
    pub fn count_some(&mut self, at: u32, count: u64) {
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.count = node.count.saturating_add(count);
        }
    }

    /// Who ended some sleeps is not known: `unknown` says so of whom and whose. What those did
    /// meanwhile is forgotten.
    pub fn forget(&mut self, unknown: impl Fn(GroupId, GroupId) -> bool) {
        // Whose time a node's is, and into which one it is lumped together.
        let mut known: Vec<(Option<GroupId>, Option<u32>)> = Vec::with_capacity(self.nodes.len());
        for at in 0..self.nodes.len() {
            let Node { frame, parent, ticks, squares, .. } = self.nodes[at];
            let (whose, into) = match parent as usize == at {
                true => (frame.life(), None),
                false => known.get(parent as usize).copied().unwrap_or_default(),
            };
            let own = match frame {
                Frame::Waker(by) if into.is_none() => {
                    let forgets = whose.is_some_and(|whose| unknown(by, whose));
                    (Some(by), forgets.then_some(at as u32))
                }
                _ => (whose, into),
            };
            known.push(own);
            if own.1 == Some(at as u32) {
                self.nodes[at].frame = Frame::Asleep;
            }
            if let Some(into) = into.map(|into| into as usize) {
                (self.nodes[at].ticks, self.nodes[at].squares) = (0, 0.0);
                self.nodes[into].ticks = self.nodes[into].ticks.saturating_add(ticks);
                self.nodes[into].squares += squares;
            }
        }
    }

    /// The life of the only thread of a name is that of the name, and needs no second copy.
    fn name_the_only(&mut self) {
        let mut threads: FastMap<GroupId, Vec<u32>> = FastMap::default();
        for (at, node) in self.roots() {
            match node.frame {
                Frame::Thread(group, _) => threads.entry(group).or_default().push(at),
                Frame::Life(group) => threads.entry(group).or_default().extend([at, at]),
                _ => {}
            }
        }
        for (group, all) in threads {
            let [only] = all[..] else { continue };
            let frame = Frame::Life(group);
            let Some(node) = self.nodes.get_mut(only as usize) else { continue };
            self.index.remove(&(NONE, node.frame));
            node.frame = frame;
            self.index.insert((NONE, frame), only);
        }
    }

    /// Adds the lives of single threads to those of their names; gives the roots of both.
    pub fn gather(&mut self) -> Vec<(u32, u32)> {
        self.name_the_only();
        let mut to: Vec<Option<u32>> = vec![None; self.nodes.len()];
        let mut roots = Vec::new();
        for at in 0..self.nodes.len() {
            let Node { frame, parent, ticks, count, squares, worst } = self.nodes[at];
            let found = match frame {
                Frame::Thread(group, _) if parent as usize == at => {
                    let root = self.insert(NONE, Frame::Life(group));
                    roots.extend(root.map(|root| (at as u32, root)));
                    root
                }
                _ if parent as usize == at => None,
                frame => to
                    .get(parent as usize)
                    .copied()
                    .flatten()
                    .and_then(|parent| self.insert(parent, frame).or(Some(parent))),
            };
            to[at] = found;
            if let Some(node) = found.and_then(|found| self.nodes.get_mut(found as usize)) {
                node.ticks = node.ticks.saturating_add(ticks);
                node.count = node.count.saturating_add(count);
                node.squares += squares;
                if worst.map(|(ticks, _)| ticks) > node.worst.map(|(ticks, _)| ticks) {
                    node.worst = worst;
                }
            }
        }
        roots
    }

    /// Makes times inclusive, once all is there.
    pub fn sum(&mut self) {
        self.children = vec![Vec::new(); self.nodes.len()];
        for at in (0..self.nodes.len()).rev() {
            let Node { parent, ticks, squares, worst, .. } = self.nodes[at];
            if parent as usize == at {
                continue;
            }
            if let Some(up) = self.nodes.get_mut(parent as usize) {
                up.ticks = up.ticks.saturating_add(ticks);
                up.squares += squares;
                if let Some((ticks, place)) = worst {
                    if up.worst.is_none_or(|(most, _)| most < ticks) {
                        up.worst = Some((ticks, place));
                    }
                }
            }
            if let Some(children) = self.children.get_mut(parent as usize) {
                children.push(at as u32);
            }
        }
    }

    /// The same nodes with less time: `keep` says what each keeps of its own ticks.
    pub fn reduced(&self, mut keep: impl FnMut(u32, u64) -> u64) -> Tree {
        let mut tree = self.clone();
        for at in 0..self.nodes.len() as u32 {
            let own = self.own(at);
            if let Some(node) = tree.nodes.get_mut(at as usize) {
                node.ticks = keep(at, own).min(own);
                // What is left of a stretch is no longer than before: its square, too.
                let left = node.ticks as f64 / own.max(1) as f64;
                node.squares *= if own == 0 { 1.0 } else { left * left };
            }
        }
        for at in (0..tree.nodes.len()).rev() {
            let Node { parent, ticks, .. } = tree.nodes[at];
            if parent as usize != at {
                let up = &mut tree.nodes[parent as usize];
                up.ticks = up.ticks.saturating_add(ticks);
            }
        }
        tree
    }

    /// Ticks of a node that are of no node within it.
    pub fn own(&self, at: u32) -> u64 {
        let below = self.children.get(at as usize).map_or(&[][..], Vec::as_slice);
        let below = below.iter().filter_map(|at| Some(self.nodes.get(*at as usize)?.ticks));
        self.node(at).map_or(0, |node| node.ticks).saturating_sub(crate::sum(below))
    }

    /// All nodes, each after the one that it is within.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> {
        (0..).zip(&self.nodes)
    }

    /// A node.
    pub fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(at as usize)
    }

    /// Nodes within one, largest first.
    pub fn within(&self, at: u32) -> Vec<(u32, &Node)> {
        let children = self.children.get(at as usize).map_or(&[][..], Vec::as_slice);
        let mut all: Vec<(u32, &Node)> =
            children.iter().filter_map(|at| Some((*at, self.nodes.get(*at as usize)?))).collect();
        all.sort_by_key(|(_, node)| (std::cmp::Reverse(node.ticks), node.frame));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_from_a_leaf_is_taken_from_all_above_it() {
        let mut tree = Tree::default();
        let root = tree.root(Frame::Life(1)).expect("room");
        let wait = tree.child(root, Frame::Waker(2));
        let (runs, ready) = (tree.child(wait, Frame::Runs), tree.child(wait, Frame::NoCpu));
        tree.add(runs, 30, Place::default());
        tree.add(ready, 70, Place::default());
        tree.add(root, 5, Place::default());
        tree.sum();
        let ticks = |tree: &Tree, at| tree.node(at).map_or(0, |node| node.ticks);
        assert_eq!((ticks(&tree, root), tree.own(root), tree.own(wait)), (105, 5, 0));
        let less = tree.reduced(|at, own| if at == ready { 10 } else { own });
        assert_eq!((ticks(&less, root), ticks(&less, wait), ticks(&less, ready)), (45, 40, 10));
        let more = tree.reduced(|_, _| u64::MAX);
        assert_eq!(ticks(&more, root), 105, "nothing gets more than it had");
    }
}
