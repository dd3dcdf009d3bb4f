//! Where vCPUs' time went.

use super::View;
use crate::evidence::thread::State;
use crate::result::{VcpuPart, VcpuSplit};

impl View<'_> {
    /// How each vCPU's time divides.
    pub fn vcpus(&self) -> Vec<VcpuSplit> {
        let mut all = self.kvm_vcpus();
        all.extend(self.xen_vcpus());
        all
    }

    fn kvm_vcpus(&self) -> Vec<VcpuSplit> {
        let calls = self.evidence.seen_anywhere().syscalls;
        let names = [
            "not recorded",
            "guest",
            if !self.evidence.seen_anywhere().kvm_exits { "KVM and guest" } else { "KVM" },
            "system calls",
            if calls { "user space" } else { "user space and system calls" },
            "waiting for a CPU",
            "asleep",
        ];
        let mut vcpus: Vec<_> = self.evidence.threads.iter().filter(|(_, t)| t.is_vcpu).collect();
        vcpus.sort_by_key(|(tid, _)| **tid);
        let states = [
            State::Unknown,
            State::Guest,
            State::Kvm,
            State::Kernel,
            State::User,
            State::Runnable,
            State::Blocked,
        ];
        vcpus
            .into_iter()
            .map(|(tid, thread)| {
                let times = states.iter().zip(names).map(|(d, n)| (n, thread.times[*d as usize]));
                self.split(self.thread(*tid), times.collect())
            })
            .collect()
    }

    fn xen_vcpus(&self) -> Vec<VcpuSplit> {
        let mut vcpus: Vec<_> =
            self.evidence.xen.vcpus.iter().filter(|(_, vcpu)| vcpu.exits > 0).collect();
        vcpus.sort_by_key(|(id, _)| **id);
        let names = [
            "running",
            "runnable, waiting for a physical CPU",
            "blocked",
            "paused, waiting for the device model",
        ];
        vcpus
            .into_iter()
            .map(|((_, domain, number), vcpu)| {
                let times = names.iter().copied().zip(vcpu.times).collect();
                self.split(format!("d{domain}v{number}"), times)
            })
            .collect()
    }

    fn split(&self, vcpu: String, times: Vec<(&str, u64)>) -> VcpuSplit {
        let total = crate::sum(times.iter().map(|(_, ticks)| *ticks));
        let mut parts: Vec<VcpuPart> = times
            .into_iter()
            .filter(|(_, ticks)| *ticks > 0)
            .map(|(name, ticks)| VcpuPart {
                name: name.to_string(),
                time_s: self.seconds(ticks),
                share: ticks as f64 / total.max(1) as f64,
            })
            .collect();
        parts.sort_by(|a, b| b.share.total_cmp(&a.share));
        VcpuSplit { vcpu, total_s: self.seconds(total), parts }
    }
}
