"""Tidemill's scheduler in virtual time: what a deployment would do, before there is one."""
