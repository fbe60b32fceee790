#!/bin/sh
# The guest's first process: loads KVM, runs what is in /suite, and powers off. Marks are read by console.rs.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
ip link set lo up
echo "@@ up"
uname -a
parameters= filter= limit=
for word in $(cat /proc/cmdline); do
    case $word in
    guest.parameter=*) parameters="$parameters ${word#guest.parameter=}" ;;
    guest.filter=*) filter=${word#guest.filter=} ;;
    guest.limit=*) limit=${word#guest.limit=} ;;
    esac
done
for module in irqbypass ccp kvm; do
    insmod /modules/$module.ko
done
if grep -q -w svm /proc/cpuinfo; then
    insmod /modules/kvm-amd.ko $parameters
else
    insmod /modules/kvm-intel.ko $parameters
fi
for parameter in /sys/module/kvm_amd/parameters/* /sys/module/kvm_intel/parameters/*; do
    [ -f $parameter ] && echo "$parameter $(cat $parameter)"
done
if [ -c /dev/kvm ]; then echo "@@ kvm yes"; else echo "@@ kvm no"; fi
for suite in /suite/*; do
    name=${suite##*/}
    echo "@@ begin $name"
    timeout -s KILL $limit "$suite" --show-output --test-threads 1 $filter
    status=$?
    # A test that was stopped has left its line open.
    echo
    echo "@@ end $name $status"
done
echo "@@ done"
# What is still in the serial line's buffer would be lost.
sleep 1
poweroff -f
