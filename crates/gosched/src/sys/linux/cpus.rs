//! How many Ps a runtime starts with: the CPUs that this process may really use (U7, D12).
//!
//! More Ps than CPUs would compete; fewer would leave CPUs unused.
//!
//! Two limits count. The *affinity* mask is the set of CPUs that the threads may run on. A *quota*
//! is the CPU time that a cgroup may use per period. The quotas of the process's cgroup and of all
//! its ancestors bind it, so the smallest counts. A quota is rounded up to whole CPUs, and to at
//! least 2: with one P a goroutine that waits out a throttled period would hold up all others. The
//! result never exceeds the mask.
//!
//! Where a quota is found: `/proc/self/cgroup` names the process's cgroup in each hierarchy.
//! `/proc/self/mountinfo` has the mount points of hierarchies, and which part of them is mounted.
//! Version 2 has both numbers in `cpu.max`, version 1 in `cpu.cfs_quota_us` and
//! `cpu.cfs_period_us`. An unreadable file is no limit. All of it runs once at start in user
//! context, so it may allocate.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::sys::linux::syscall::{Errno, check, syscall3};

/// The first affinity mask tried holds 1,024 CPUs.
const MASK_WORDS: usize = 16;

/// A kernel that asks for more than four million CPUs is ignored.
const MASK_WORDS_MAX: usize = 1 << 16;

/// The fewest Ps that follow from a quota alone.
const QUOTA_CPUS_MIN: usize = 2;

/// The number of Ps for this process if the program sets none; at least 1; CONTEXT: user.
pub(crate) fn default_procs() -> usize {
    combine(affinity_cpus(), quota_cpus(Path::new("/")))
}

/// The smaller of mask and quota, the latter never below its minimum.
fn combine(affinity: usize, quota: Option<usize>) -> usize {
    let quota = quota.map_or(usize::MAX, |cpus| cpus.max(QUOTA_CPUS_MIN));
    affinity.min(quota).max(1)
}

/// CPUs in the calling thread's affinity mask; 1 if the kernel refuses.
fn affinity_cpus() -> usize {
    let mut mask = vec![0u64; MASK_WORDS];
    loop {
        let (at, bytes) = (mask.as_mut_ptr() as usize, size_of_val(&mask[..]));
        // SAFETY: the kernel writes at most `bytes` bytes to the vector's own memory; thread 0 is
        // the caller.
        let answer = unsafe { syscall3(libc::SYS_sched_getaffinity, 0, bytes, at) };
        match check(answer) {
            Ok(_) => return mask.iter().map(|word| word.count_ones() as usize).sum(),
            // The machine has more CPUs than the mask has bits.
            Err(Errno(libc::EINVAL)) if mask.len() < MASK_WORDS_MAX => {
                let words = mask.len() * 2;
                mask.resize(words, 0);
            }
            Err(_) => return 1,
        }
    }
}

/// A hierarchy's version, which decides the names of its files.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Version {
    /// One hierarchy per controller; ours is the one with `cpu`.
    V1,
    /// The unified hierarchy.
    V2,
}

/// CPU time allowed per period.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Quota {
    /// Time that may be used in a period.
    quota_us: u64,
    /// Length of the period.
    period_us: u64,
}

impl Quota {
    /// `None` if either number is zero.
    fn new(quota_us: u64, period_us: u64) -> Option<Quota> {
        (quota_us > 0 && period_us > 0).then_some(Quota {
            quota_us,
            period_us,
        })
    }

    /// Whole CPUs, rounded up.
    fn cpus(self) -> usize {
        usize::try_from(self.quota_us.div_ceil(self.period_us)).unwrap_or(usize::MAX)
    }
}

/// The smallest quota of this process in whole CPUs. `root` is prepended to every path; it is `/`
/// except in tests. Rounding before comparing gives the same as after.
fn quota_cpus(root: &Path) -> Option<usize> {
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let cgroups = parse_cgroups(&cgroups);
    parse_mounts(&mounts)
        .iter()
        .flat_map(|mount| cgroups.iter().map(move |cgroup| (mount, cgroup)))
        .filter(|(mount, cgroup)| mount.version == cgroup.version)
        .filter_map(|(mount, cgroup)| tightest(root, mount, &cgroup.path))
        .min()
}

/// The smallest quota from a cgroup up to the mount point of its hierarchy.
fn tightest(root: &Path, mount: &Mount, cgroup: &Path) -> Option<usize> {
    let below = below(&mount.root, cgroup)?;
    let top = root.join(mount.point.strip_prefix("/").ok()?);
    below
        .ancestors()
        .filter_map(|step| read_quota(&top.join(step), mount.version))
        .map(Quota::cpus)
        .min()
}

/// The path of a cgroup below a mount's root. `None` if it is outside of it, or outside of the
/// process's cgroup namespace, which shows as `..`.
fn below<'a>(mount_root: &Path, cgroup: &'a Path) -> Option<&'a Path> {
    let below = cgroup.strip_prefix(mount_root).ok()?;
    let is_plain = |path: &Path| !path.components().any(|part| part == Component::ParentDir);
    (is_plain(mount_root) && is_plain(below)).then_some(below)
}

/// The quota set on one cgroup's directory, if any.
fn read_quota(directory: &Path, version: Version) -> Option<Quota> {
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    match version {
        Version::V2 => parse_cpu_max(&read("cpu.max")?),
        Version::V1 => parse_cfs(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?),
    }
}

/// Version 2's `QUOTA PERIOD`; `max` is no quota.
fn parse_cpu_max(text: &str) -> Option<Quota> {
    let mut fields = text.split_ascii_whitespace();
    let (quota, period) = (fields.next()?, fields.next()?);
    Quota::new(quota.parse().ok()?, period.parse().ok()?)
}

/// Version 1's two files; a quota of -1 is none.
fn parse_cfs(quota: &str, period: &str) -> Option<Quota> {
    Quota::new(quota.trim().parse().ok()?, period.trim().parse().ok()?)
}

/// This process's place in one hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Cgroup {
    version: Version,
    path: PathBuf,
}

/// The hierarchies of `/proc/self/cgroup` (`id:controllers:path` on each line) that can limit CPU
/// time: the unified one, and of the old ones the one with `cpu`.
fn parse_cgroups(text: &str) -> Vec<Cgroup> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match (id, controllers) {
            ("0", "") => Version::V2,
            (_, list) if list.split(',').any(|name| name == "cpu") => Version::V1,
            _ => return None,
        };
        let path = PathBuf::from(path);
        path.is_absolute().then_some(Cgroup { version, path })
    };
    text.lines().filter_map(parse).collect()
}

/// One mounted part of a hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mount {
    version: Version,
    /// The cgroup that is visible at the mount point.
    root: PathBuf,
    point: PathBuf,
}

/// The mounts of `/proc/self/mountinfo` whose hierarchy can limit CPU time. A line is
/// `id parent device root point options optional... - type source super-options`.
fn parse_mounts(text: &str) -> Vec<Mount> {
    let parse = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1)?);
        let version = match name {
            "cgroup2" => Version::V2,
            "cgroup" if options.split(',').any(|option| option == "cpu") => Version::V1,
            _ => return None,
        };
        Some(Mount {
            version,
            root,
            point,
        })
    };
    text.lines().filter_map(parse).collect()
}

/// A path of mountinfo. It has space, tab, newline and backslash as a backslash and three octal
/// digits.
fn unescape(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let code = digits
            .and_then(|digits| core::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    PathBuf::from(std::ffi::OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const V2_MOUNT: &str = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";
    const V1_MOUNT: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                            33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
    const V1_TOP: &str = "sys/fs/cgroup/cpu,cpuacct";

    /// A directory used as `/`, removed at the end of the test.
    struct FakeRoot(PathBuf);

    impl FakeRoot {
        fn new(cgroup: &str, mountinfo: &str) -> FakeRoot {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!(
                "gosched-cpus-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Relaxed)
            );
            let root = FakeRoot(std::env::temp_dir().join(name));
            root.file("proc/self/cgroup", cgroup);
            root.file("proc/self/mountinfo", mountinfo);
            root
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("file");
        }

        fn cfs(&self, directory: &str, quota: &str, period: &str) {
            self.file(&format!("{directory}/cpu.cfs_quota_us"), quota);
            self.file(&format!("{directory}/cpu.cfs_period_us"), period);
        }

        fn cpus(&self) -> Option<usize> {
            quota_cpus(&self.0)
        }
    }

    impl Drop for FakeRoot {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn cpu_max_is_parsed_or_refused() {
        let cpus = |text| parse_cpu_max(text).map(Quota::cpus);
        assert_eq!(cpus("200000 100000\n"), Some(2));
        assert_eq!(cpus("200001 100000\n"), Some(3));
        assert_eq!(cpus("1000 100000"), Some(1));
        for none in [
            "max 100000\n",
            "",
            "max",
            "100000",
            "x y",
            "-1 100000",
            "0 100000",
        ] {
            assert_eq!(cpus(none), None, "{none:?}");
        }
        assert_eq!(cpus("100000 0"), None);
        assert_eq!(cpus("99999999999999999999 100000"), None);
        assert_eq!(cpus("18446744073709551615 1"), Some(usize::MAX));
    }

    #[test]
    fn cfs_files_are_parsed_or_refused() {
        let cpus = |quota, period| parse_cfs(quota, period).map(Quota::cpus);
        assert_eq!(cpus("350000\n", "100000\n"), Some(4));
        assert_eq!(cpus("-1\n", "100000\n"), None);
        assert_eq!(cpus("", "100000"), None);
        assert_eq!(cpus("100000", "0"), None);
        assert_eq!(cpus("100000", "abc"), None);
    }

    #[test]
    fn cgroup_lines_are_chosen_by_controller() {
        let text = "5:cpuset:/set\n4:cpu,cpuacct:/a:b/c\n1:name=systemd:/s\n0::/u\nbad\n7:cpu\n8:cpu:rel\n";
        let cgroup = |version, path: &str| Cgroup {
            version,
            path: path.into(),
        };
        let expected = [cgroup(Version::V1, "/a:b/c"), cgroup(Version::V2, "/u")];
        assert_eq!(parse_cgroups(text), expected);
    }

    #[test]
    fn mount_lines_are_chosen_by_type_and_options() {
        let text = "1 0 0:1 / / rw - ext4 /dev/vda rw\n\
                    2 1 0:2 /a\\040b /mnt/c\\134d rw master:1 shared:2 - cgroup cgroup rw,cpu\n\
                    3 1 0:3 / /cpuset rw - cgroup cgroup rw,cpuset\n\
                    4 1 0:4 / /two rw - cgroup2 none rw,nsdelegate\nbroken line\n - cgroup2\n";
        let mount = |version, root: &str, point: &str| Mount {
            version,
            root: root.into(),
            point: point.into(),
        };
        let expected = [
            mount(Version::V1, "/a b", "/mnt/c\\d"),
            mount(Version::V2, "/", "/two"),
        ];
        assert_eq!(parse_mounts(text), expected);
        assert_eq!(unescape("a\\0"), PathBuf::from("a\\0"));
        assert_eq!(unescape("a\\999b"), PathBuf::from("a\\999b"));
    }

    #[test]
    fn v2_takes_the_tightest_of_all_ancestors() {
        let root = FakeRoot::new("0::/a/b/c\n", V2_MOUNT);
        assert_eq!(root.cpus(), None);
        root.file("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
        assert_eq!(root.cpus(), None);
        root.file("sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
        assert_eq!(root.cpus(), Some(8));
        root.file("sys/fs/cgroup/a/b/cpu.max", "garbage");
        root.file("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
        assert_eq!(root.cpus(), Some(3));
        // The mount point counts too; siblings and directories outside do not.
        root.file("sys/fs/cgroup/a/x/cpu.max", "1000 100000\n");
        root.file("sys/fs/cpu.max", "1000 100000\n");
        assert_eq!(root.cpus(), Some(3));
        root.file("sys/fs/cgroup/cpu.max", "120000 100000\n");
        assert_eq!(root.cpus(), Some(2));
    }

    #[test]
    fn v1_takes_the_tightest_of_all_ancestors() {
        let root = FakeRoot::new("4:memory:/m\n3:cpu,cpuacct:/a/b\n", V1_MOUNT);
        assert_eq!(root.cpus(), None);
        root.cfs(&format!("{V1_TOP}/a/b"), "600000\n", "100000\n");
        assert_eq!(root.cpus(), Some(6));
        root.cfs(&format!("{V1_TOP}/a"), "50000\n", "10000\n");
        assert_eq!(root.cpus(), Some(5));
        root.cfs(V1_TOP, "-1\n", "100000\n");
        assert_eq!(root.cpus(), Some(5));
        root.file("sys/fs/cgroup/memory/m/cpu.cfs_quota_us", "1\n");
        root.file("sys/fs/cgroup/memory/m/cpu.cfs_period_us", "1\n");
        assert_eq!(root.cpus(), Some(5));
    }

    #[test]
    fn a_container_sees_only_its_part() {
        let mount = "32 31 0:29 /docker/x /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu";
        let root = FakeRoot::new("3:cpu:/docker/x/in\n", mount);
        root.cfs("sys/fs/cgroup/cpu", "400000", "100000");
        assert_eq!(root.cpus(), Some(4));
        root.cfs("sys/fs/cgroup/cpu/in", "300000", "100000");
        assert_eq!(root.cpus(), Some(3));
        // A mount of another container is no limit for this one.
        root.file("proc/self/cgroup", "3:cpu:/docker/xy\n");
        assert_eq!(root.cpus(), None);
        root.file("proc/self/cgroup", "3:cpu:/docker/x/../y\n");
        assert_eq!(root.cpus(), None);
    }

    #[test]
    fn hybrid_machines_keep_cpu_in_the_old_hierarchy() {
        let mounts =
            format!("{V1_MOUNT}\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
        let root = FakeRoot::new("1:cpu,cpuacct:/job\n0::/user\n", &mounts);
        root.cfs(&format!("{V1_TOP}/job"), "700000", "100000");
        root.file("sys/fs/cgroup/unified/user/cgroup.procs", "1\n");
        assert_eq!(root.cpus(), Some(7));
        // If both limit, the smaller quota counts.
        root.file("sys/fs/cgroup/unified/user/cpu.max", "300000 100000");
        assert_eq!(root.cpus(), Some(3));
    }

    #[test]
    fn missing_and_garbled_files_are_no_limit() {
        assert_eq!(quota_cpus(Path::new("/no/such/root")), None);
        assert_eq!(FakeRoot::new("", "").cpus(), None);
        assert_eq!(FakeRoot::new("0::/a", "").cpus(), None);
        assert_eq!(FakeRoot::new("", V2_MOUNT).cpus(), None);
        assert_eq!(FakeRoot::new("\u{0}::::\n0::", "- - - -\n\n").cpus(), None);
    }

    #[test]
    fn mask_and_quota_combine() {
        assert_eq!(combine(8, None), 8);
        assert_eq!(combine(8, Some(3)), 3);
        assert_eq!(combine(8, Some(1)), 2);
        assert_eq!(combine(1, Some(1)), 1);
        assert_eq!(combine(2, Some(64)), 2);
        assert_eq!(combine(0, None), 1);
    }

    #[test]
    fn the_mask_is_the_threads_own() {
        std::thread::spawn(|| {
            let before = affinity_cpus();
            assert!(before >= 1);
            // SAFETY: all zeros is a valid set, and the calls use only this frame's.
            unsafe {
                let mut set: libc::cpu_set_t = core::mem::zeroed();
                let size = size_of::<libc::cpu_set_t>();
                assert_eq!(libc::sched_getaffinity(0, size, &mut set), 0);
                assert_eq!(libc::CPU_COUNT(&set) as usize, before);
                let first = (0..1024).find(|&cpu| libc::CPU_ISSET(cpu, &set));
                libc::CPU_ZERO(&mut set);
                libc::CPU_SET(first.expect("a CPU"), &mut set);
                assert_eq!(libc::sched_setaffinity(0, size, &set), 0);
            }
            assert_eq!(affinity_cpus(), 1);
            assert_eq!(default_procs(), 1);
        })
        .join()
        .expect("no panic");
        assert!(default_procs() >= 1);
    }
}
